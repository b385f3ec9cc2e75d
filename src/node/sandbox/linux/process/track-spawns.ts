import type { RemoteSpawn, SpawnedProcess } from './spawner.ts'

/** Starts processes and lists those that run. */
export interface TrackedSpawn {
  spawn: RemoteSpawn
  pids(): number[]
}

export function trackSpawns(spawn: RemoteSpawn): TrackedSpawn {
  const running = new Set<SpawnedProcess>()
  return {
    spawn: (...options) => {
      const child = spawn(...options)
      running.add(child)
      child.once('exit', () => running.delete(child))
      return child
    },
    pids: () => [...running].map(({ pid }) => pid).filter((pid) => pid !== undefined),
  }
}
