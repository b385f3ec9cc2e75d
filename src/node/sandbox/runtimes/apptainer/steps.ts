import { loadProgram } from '../../../../lib/process/load-program.ts'
import type { ProcessRef } from '../../linux/process/processes.ts'

/** Numbers of system calls for which Perl has no function. */
const CALLS = {
  x64: { capset: 126, fchownat: 260, keyctl: 250, mount: 165, pivot_root: 155, prctl: 157, prlimit64: 302, setgroups: 116, setns: 308, setresgid: 119, setresuid: 117, umount2: 166, unshare: 272 }, // prettier-ignore
  arm64: { capset: 91, fchownat: 54, keyctl: 219, mount: 40, pivot_root: 41, prctl: 167, prlimit64: 261, setgroups: 159, setns: 268, setresgid: 149, setresuid: 147, umount2: 39, unshare: 97 }, // prettier-ignore
} as const

const prelude = loadProgram(new URL('./prelude.pl', import.meta.url))
const PROGRAMS = {
  launch: loadProgram(new URL('./launch.pl', import.meta.url)),
  holdUsers: loadProgram(new URL('./hold-users.pl', import.meta.url)),
  finish: loadProgram(new URL('./finish.pl', import.meta.url)),
  createNamespace: loadProgram(new URL('./process-namespace.pl', import.meta.url)),
  enter: loadProgram(new URL('./enter.pl', import.meta.url)),
  visit: loadProgram(new URL('./visit.pl', import.meta.url)),
}

export type Architecture = keyof typeof CALLS

/** Returns undefined for an architecture whose system calls are unknown. */
export function findArchitecture(): Architecture | undefined {
  return process.arch === 'x64' || process.arch === 'arm64' ? process.arch : undefined
}

type Argument = string | number | boolean | ProcessRef

/** Returns the command line of a program. Every user of the machine can read its arguments. */
export function step(
  architecture: Architecture,
  program: keyof typeof PROGRAMS,
  ...args: readonly Argument[]
): [string, ...string[]] {
  const calls = Object.entries(CALLS[architecture]).map(([name, number]) => `${name} => ${number}`)
  const script = `our %call = (${calls.join(', ')});\n${prelude()}${PROGRAMS[program]()}`
  return ['perl', '-e', script, ...args.map(toText)]
}

function toText(argument: Argument): string {
  if (typeof argument === 'boolean') return argument ? '1' : ''
  return String(typeof argument === 'object' ? argument.pid : argument)
}
