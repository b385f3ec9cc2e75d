import { readdir, readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { errnoOf } from '../../../../lib/fs/errno.ts'

const SWEEPS = 100
const SWEEP_MS = 5

/** Identifies a process of this machine, also after its pid was reused. */
export interface ProcessRef {
  pid: number
  /** Clock ticks since the machine started. */
  started: string
}

/** Returns undefined if the process does not exist or is a zombie. */
export async function identify(pid: number): Promise<ProcessRef | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => undefined)
  if (stat === undefined) return undefined
  // The command name is in brackets and may contain any character; the fields after it are numbers and one letter.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return fields[0] === 'Z' || fields[0] === 'X' ? undefined : { pid, started: fields[19] ?? '' }
}

export async function isAlive(ref: ProcessRef): Promise<boolean> {
  return (await identify(ref.pid))?.started === ref.started
}

/** Sends a signal to exactly this process. A process that has ended is no error. */
export async function signalProcess(ref: ProcessRef, signal: NodeJS.Signals): Promise<void> {
  if (!(await isAlive(ref))) return
  try {
    process.kill(ref.pid, signal)
  } catch (error) {
    if (errnoOf(error) !== 'ESRCH') throw error
  }
}

/** Returns the children of a process's first thread, oldest first. */
export async function childrenOf(pid: number): Promise<number[]> {
  const list = await readFile(`/proc/${pid}/task/${pid}/children`, 'latin1').catch(() => '')
  return list.split(' ').filter(Boolean).map(Number)
}

/** Returns undefined if the process has no child, or if its oldest child has ended. */
export async function firstChildOf(pid: number): Promise<ProcessRef | undefined> {
  const [child] = await childrenOf(pid)
  return child === undefined ? undefined : identify(child)
}

/** Returns the processes whose environment or mounts contain the text, as far as this process may read them. */
async function findProcesses(text: string, place: 'environ' | 'mounts'): Promise<ProcessRef[]> {
  const names = await readdir('/proc')
  const found = names
    .filter((name) => /^\d+$/.test(name))
    .map(async (name) => {
      const content = await readFile(`/proc/${name}/${place}`, 'latin1').catch(() => '')
      return content.includes(text) ? identify(Number(name)) : undefined
    })
  return (await Promise.all(found)).filter((ref) => ref !== undefined)
}

/** Kills these processes, except this one, until none is left. */
export async function endProcesses(text: string, place: 'environ' | 'mounts'): Promise<void> {
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const found = await findProcesses(text, place)
    const others = found.filter(({ pid }) => pid !== process.pid)
    if (others.length === 0) return
    for (const ref of others) await signalProcess(ref, 'SIGKILL')
    await sleep(SWEEP_MS)
  }
}
