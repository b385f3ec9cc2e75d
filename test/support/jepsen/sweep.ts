import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** Environment variable of all started processes, including agents. */
export const MARKER = 'POLAR_JEPSEN_RUN'

/** Describes leaked processes with the marker of a run, except one, and leaked mounts of its folders. */
export function findLeft(run: string, dir: string, except?: number): string[] {
  return [...findProcesses(run, except), ...findMounts(dir)]
}

/**
 * Describes leaked folders of a node's sandboxes, sessions and gradings. Ignores shared folders of a runtime, and prepared
 * pipes of a killed process, which the next process removes when it needs pipes.
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

/** Returns an empty text for a file that has disappeared or is not readable. */
function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
