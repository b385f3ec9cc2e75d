import { spawn, type ChildProcess, type SpawnOptions } from 'node:child_process'
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs'

const CLOEXEC = 0o2000000

type Stdio = 'ignore' | 'pipe' | 'ipc' | number

/** Starts a program with only the given environment and file descriptors. */
export type CleanSpawn = (
  file: string,
  args: readonly string[],
  options: Omit<SpawnOptions, 'env' | 'stdio'> & { env: Readonly<Record<string, string>>; stdio: readonly Stdio[] },
) => ChildProcess

/**
 * Node closes its own file descriptors in a child process, but passes on those that this process inherited. A child
 * process gets /dev/null in their place.
 */
export function createCleanSpawn(): CleanSpawn {
  const inherited = findInherited()
  return (file, args, options) => {
    if (inherited.length === 0) return spawn(file, args, { ...options, stdio: options.stdio.slice() })
    const nothing = openSync('/dev/null', 'r')
    const stdio = options.stdio.slice()
    for (const fd of inherited) {
      while (stdio.length < fd) stdio.push('ignore')
      if (fd >= options.stdio.length) stdio[fd] = nothing
    }
    try {
      return spawn(file, args, { ...options, stdio })
    } finally {
      closeSync(nothing)
    }
  }
}

function findInherited(): number[] {
  return readdirSync('/proc/self/fd')
    .map(Number)
    .filter((fd) => fd > 2 && !isClosedOnExec(fd))
    .sort((a, b) => a - b)
}

function isClosedOnExec(fd: number): boolean {
  try {
    const flags = /^flags:\s+([0-7]+)/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1'))?.[1]
    return flags === undefined || (Number.parseInt(flags, 8) & CLOEXEC) !== 0
  } catch {
    return true
  }
}
