import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** Set in everything that is started, down to the agents. */
export const MARKER = 'POLAR_JEPSEN_RUN'

/** What a run left on this machine, but for one process: those with its mark, and mounts of its folders, in words. */
export function findLeft(run: string, dir: string, except?: number): string[] {
  return [...findProcesses(run, except), ...findMounts(dir)]
}

/**
 * What a node left in its folder of sandboxes and sessions, of which nothing is to be kept. What a kind of sandbox has for
 * all of them is; and pipes that a killed process had ready are taken away when the next one first needs some.
 */
export function findFolders(home: string): string[] {
  const sandboxes = join(home, 'sandboxes')
  const kinds = namesIn(sandboxes).map((kind) => join(sandboxes, kind, 'sandboxes'))
  return [...kinds, join(home, 'sessions'), join(home, 'grading')].flatMap((folder) =>
    namesIn(folder).map((name) => `folder ${join(folder, name)}`),
  )
}

function namesIn(folder: string): string[] {
  return existsSync(folder) ? readdirSync(folder) : []
}

function findProcesses(run: string, except: number | undefined): string[] {
  const found: string[] = []
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name) || [process.pid, except].includes(Number(name))) continue
    const environment = read(`/proc/${name}/environ`)
    if (!environment.split('\0').includes(`${MARKER}=${run}`)) continue
    found.push(`process ${name}: ${read(`/proc/${name}/cmdline`).replaceAll('\0', ' ').slice(0, 200)}`)
  }
  return found
}

function findMounts(dir: string): string[] {
  return read('/proc/self/mountinfo')
    .split('\n')
    .filter((line) => line.includes(dir))
    .map((line) => `mount ${line}`)
}

/** Gone meanwhile, or not ours to read. */
function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
