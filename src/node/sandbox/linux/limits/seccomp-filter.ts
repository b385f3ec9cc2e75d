import { loadProgram } from '../../../../lib/process/load-program.ts'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { HOST_ENV } from '../files/paths.ts'

/** System calls that no command needs, with their numbers on x86_64 and arm64; null if absent. */
const REFUSED: Readonly<Record<string, readonly [x64: number, arm64: number | null]>> = {
  // Keyrings of the login belong to no namespace.
  add_key: [248, 217],
  request_key: [249, 218],
  keyctl: [250, 219],
  // Large parts of the kernel with many vulnerabilities.
  bpf: [321, 280],
  perf_event_open: [298, 241],
  userfaultfd: [323, 282],
  io_uring_setup: [425, 425],
  io_uring_enter: [426, 426],
  io_uring_register: [427, 427],
  // Only root may call these.
  init_module: [175, 105],
  finit_module: [313, 273],
  delete_module: [176, 106],
  kexec_load: [246, 104],
  kexec_file_load: [320, 294],
  reboot: [169, 142],
  swapon: [167, 224],
  swapoff: [168, 225],
  acct: [163, 89],
  quotactl: [179, 60],
  quotactl_fd: [443, 443],
  settimeofday: [164, 170],
  clock_settime: [227, 112],
  syslog: [103, 116],
  iopl: [172, null],
  ioperm: [173, null],
  // Opens a file by its inode, independent of its path; used for container escapes.
  open_by_handle_at: [304, 265],
  fanotify_init: [300, 262],
  vhangup: [153, 58],
}

/**
 * Calls that fail as on a kernel without them. The number of asynchronous I/O contexts is limited for the whole
 * machine, so one sandbox could use up the contexts of all others; libraries fall back to threads.
 */
const ABSENT: typeof REFUSED = {
  io_setup: [206, 0],
}

/** Only useful in a user namespace of its own. */
const REFUSED_MOUNTS: typeof REFUSED = {
  mount: [165, 40],
  umount2: [166, 39],
  pivot_root: [155, 41],
  open_tree: [428, 428],
  move_mount: [429, 429],
  fsopen: [430, 430],
  fsconfig: [431, 431],
  fsmount: [432, 432],
  fspick: [433, 433],
  mount_setattr: [442, 442],
  open_tree_attr: [467, 467],
}

/** Numbers of `linux/audit.h`, and of system calls that the filter names or inspects. */
const MACHINES = {
  x64: { index: 0, audit: 0xc000_003e, prctl: 157, keyctl: 250, clone: 56, socket: 41, socketpair: 53 },
  arm64: { index: 1, audit: 0xc000_00b7, prctl: 167, keyctl: 219, clone: 220, socket: 198, socketpair: 199 },
} as const

/** Number of a socket family and its allowed protocols; absent: all. */
interface SocketFamily {
  family: number
  protocols?: readonly number[]
}

/**
 * The sockets that commands may open. All other families reach the machine or its hypervisor past the network namespace
 * (AF_VSOCK), or are large and rarely tested parts of the kernel (AF_ALG, AF_PACKET, AF_XDP, AF_TIPC, AF_RDS,
 * AF_BLUETOOTH).
 */
export const SOCKET_FAMILIES: readonly SocketFamily[] = [
  // AF_UNIX
  { family: 1 },
  // AF_INET and AF_INET6: the default, ICMP echo, TCP, UDP.
  { family: 2, protocols: [0, 1, 6, 17] },
  { family: 10, protocols: [0, 6, 17, 58] },
  // AF_NETLINK: NETLINK_ROUTE, by which libraries list network interfaces.
  { family: 16, protocols: [0] },
]
const AF_NETLINK = 16

/** Its flags are in memory, which a filter cannot read. */
const CLONE3 = 435
/**
 * Creates a sibling instead of a child: a child of the process that started the command, outside of the command's
 * namespace.
 */
const CLONE_PARENT = 0x8000

type Architecture = keyof typeof MACHINES

/** From this number on, the x32 variants of the calls begin. */
const X32_CALLS = 0x4000_0000

const LOAD_WORD = 0x20
const JUMP_IF_EQUAL = 0x15
const JUMP_IF_AT_LEAST = 0x35
const JUMP_IF_ANY_BIT = 0x45
const RETURN = 0x06
/**
 * Results of a call: allowed, EPERM, ENOSYS, EAFNOSUPPORT, EPROTONOSUPPORT. No call kills the process: programs try
 * io_uring and fall back.
 */
const ENDINGS = {
  allow: 0x7fff_0000,
  refuse: 0x0005_0001,
  unknown: 0x0005_0026,
  'no-family': 0x0005_0061,
  'no-protocol': 0x0005_005d,
} as const
type Ending = keyof typeof ENDINGS
/** A jump target inside the program. */
type Label = 'sockets' | `family ${number}`
/**
 * Offsets in `struct seccomp_data`. For an argument, the lower half, which is all that the kernel reads of an `int`.
 */
const NUMBER_OFFSET = 0
const MACHINE_OFFSET = 4
const FIRST_ARGUMENT_OFFSET = 16
const THIRD_ARGUMENT_OFFSET = 32

/** An instruction with its jump targets if its test holds or fails; absent: the next instruction. */
interface Instruction {
  code: number
  value: number
  label?: Label
  yes?: Ending | Label
  no?: Ending | Label
}

/**
 * Returns a program of `linux/filter.h` for `prctl(PR_SET_SECCOMP)`. Rejects calls of another architecture, such as
 * 32-bit calls.
 */
export function buildSeccompFilter(machine: Architecture, { mayMount }: { mayMount: boolean }): Buffer {
  const { index, audit, clone, socket, socketpair } = MACHINES[machine]
  const numbersOf = (calls: typeof REFUSED): number[] =>
    Object.values(calls)
      .map((call) => call[index])
      .filter((number) => number !== null)
  // Without clone3, libraries use clone, whose flags a filter can read. Containers in the sandbox need both calls
  // unfiltered.
  const cloning: Instruction[] = [
    { code: JUMP_IF_EQUAL, value: CLONE3, yes: 'unknown' },
    { code: JUMP_IF_EQUAL, value: clone, no: 'allow' },
    { code: LOAD_WORD, value: FIRST_ARGUMENT_OFFSET },
    { code: JUMP_IF_ANY_BIT, value: CLONE_PARENT, yes: 'refuse', no: 'allow' },
  ]
  return assemble([
    { code: LOAD_WORD, value: MACHINE_OFFSET },
    { code: JUMP_IF_EQUAL, value: audit, no: 'refuse' },
    { code: LOAD_WORD, value: NUMBER_OFFSET },
    { code: JUMP_IF_AT_LEAST, value: X32_CALLS, yes: 'refuse' },
    ...numbersOf(mayMount ? REFUSED : { ...REFUSED, ...REFUSED_MOUNTS }).map((value): Instruction => ({
      code: JUMP_IF_EQUAL,
      value,
      yes: 'refuse',
    })),
    ...numbersOf(ABSENT).map((value): Instruction => ({ code: JUMP_IF_EQUAL, value, yes: 'unknown' })),
    { code: JUMP_IF_EQUAL, value: socket, yes: 'sockets' },
    { code: JUMP_IF_EQUAL, value: socketpair, yes: 'sockets', no: mayMount ? 'allow' : undefined },
    ...(mayMount ? [] : cloning),
    ...socketRules(mayMount),
  ])
}

/** Containers in the sandbox use further protocols of netlink to set up their network. */
function socketRules(mayMount: boolean): Instruction[] {
  const families = SOCKET_FAMILIES.map(({ family, protocols }) => ({
    family,
    protocols: mayMount && family === AF_NETLINK ? undefined : protocols,
  }))
  const choices = families.map(({ family, protocols }): Instruction => ({
    code: JUMP_IF_EQUAL,
    value: family,
    yes: protocols === undefined ? 'allow' : `family ${family}`,
  }))
  const checks = families.flatMap(({ family, protocols = [] }): Instruction[] => {
    if (protocols.length === 0) return []
    const tests = protocols.map((value): Instruction => ({ code: JUMP_IF_EQUAL, value, yes: 'allow' }))
    return [
      { code: LOAD_WORD, value: THIRD_ARGUMENT_OFFSET, label: `family ${family}` },
      ...tests.slice(0, -1),
      { ...tests.at(-1)!, no: 'no-protocol' },
    ]
  })
  return [
    { code: LOAD_WORD, value: FIRST_ARGUMENT_OFFSET, label: 'sockets' },
    ...choices.slice(0, -1),
    { ...choices.at(-1)!, no: 'no-family' },
    ...checks,
  ]
}

/** Encodes a program. Jumps go forward only, by at most 255 instructions. */
function assemble(instructions: readonly Instruction[]): Buffer {
  const endings = Object.keys(ENDINGS) as Ending[]
  const lines = [...instructions, ...endings.map((each): Instruction => ({ code: RETURN, value: ENDINGS[each] }))]
  const indexOf = (target: Ending | Label): number =>
    target in ENDINGS
      ? instructions.length + endings.indexOf(target as Ending)
      : instructions.findIndex(({ label }) => label === target)
  const program = Buffer.alloc(lines.length * 8)
  for (const [at, { code, value, yes, no }] of lines.entries()) {
    const jump = (target: Ending | Label | undefined) => (target === undefined ? 0 : indexOf(target) - at - 1)
    program.writeUInt16LE(code, at * 8)
    program.writeUInt8(jump(yes), at * 8 + 2)
    program.writeUInt8(jump(no), at * 8 + 3)
    program.writeUInt32LE(value, at * 8 + 4)
  }
  return program
}

const applySeccomp = loadProgram(new URL('./apply-seccomp.pl', import.meta.url))

/** Returns the command prefix that installs the filter; undefined if it cannot be installed. */
export async function findSeccompPrefix(options: { mayMount: boolean }): Promise<readonly string[] | undefined> {
  const machine = process.arch
  if (machine !== 'x64' && machine !== 'arm64') return undefined
  const { prctl, keyctl } = MACHINES[machine]
  const filter = buildSeccompFilter(machine, options).toString('hex')
  const prefix = ['perl', '-e', applySeccomp(), String(prctl), String(keyctl), filter] as const
  const { exitCode } = await runProgram([...prefix, 'true'], { env: HOST_ENV })
  return exitCode === 0 ? prefix : undefined
}
