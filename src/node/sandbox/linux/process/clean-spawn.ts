import { spawn, type ChildProcess, type SpawnOptions } from 'node:child_process'
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs'

const CLOEXEC = 0o2000000

type Stdio = 'ignore' | 'pipe' | 'ipc' | number

/** Starts a program with nothing but what it is given: no environment, no file descriptors but its first ones. */
export type CleanSpawn = (
  file: string,
  args: readonly string[],
  options: Omit<SpawnOptions, 'env' | 'stdio'> & { env: Readonly<Record<string, string>>; stdio: readonly Stdio[] },
) => ChildProcess

/**
 * What node opens itself is closed in a child, but what this process was started with is passed on, and that may be
 * anything. A child gets /dev/null in its place.
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
