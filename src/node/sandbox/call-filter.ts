import { runProgram } from '../../lib/run-program.ts'

/** The number of each system call that no command needs, on x86_64 and on arm64; null where there is none. */
const REFUSED: Readonly<Record<string, readonly [x64: number, arm64: number | null]>> = {
  // Keys of whoever started us, which belong to no namespace.
  add_key: [248, 217],
  request_key: [249, 218],
  keyctl: [250, 219],
  // Large and often broken parts of the kernel.
  bpf: [321, 280],
  perf_event_open: [298, 241],
  userfaultfd: [323, 282],
  io_uring_setup: [425, 425],
  io_uring_enter: [426, 426],
  io_uring_register: [427, 427],
  // What only root may do in any case.
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
  // A file by its number, whatever leads there: how containers were left before.
  open_by_handle_at: [304, 265],
  fanotify_init: [300, 262],
  vhangup: [153, 58],
}

/** Of use only to one that has a user namespace of its own. */
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

/** Numbers of `linux/audit.h`, and of the two calls that put a filter in its place. */
const MACHINES = {
  x64: { index: 0, audit: 0xc000_003e, prctl: 157, keyctl: 250 },
  arm64: { index: 1, audit: 0xc000_00b7, prctl: 167, keyctl: 219 },
} as const

type Machine = keyof typeof MACHINES

/** From here on numbers mean the same calls once more, with shorter pointers. */
const X32_CALLS = 0x4000_0000

const LOAD_WORD = 0x20
const JUMP_IF_EQUAL = 0x15
const JUMP_IF_AT_LEAST = 0x35
const RETURN = 0x06
const ALLOW = 0x7fff_0000
/** Not the end of the process: programs ask for io_uring and do well without. */
const REFUSE_WITH_EPERM = 0x0005_0001
/** Of `struct seccomp_data`. */
const NUMBER_OFFSET = 0
const MACHINE_OFFSET = 4

/** A program of `linux/filter.h`, for `prctl(PR_SET_SECCOMP)`. Calls of another machine, as of 32 bits, are refused. */
export function buildCallFilter(machine: Machine, { mayMount }: { mayMount: boolean }): Buffer {
  const { index, audit } = MACHINES[machine]
  const numbers = Object.values(mayMount ? REFUSED : { ...REFUSED, ...REFUSED_MOUNTS })
    .map((call) => call[index])
    .filter((number) => number !== null)
  /** Each test, and whether it is its success or its failure that refuses the call. */
  const tests = [
    { load: MACHINE_OFFSET, jump: JUMP_IF_EQUAL, value: audit, refuses: false },
    { load: NUMBER_OFFSET, jump: JUMP_IF_AT_LEAST, value: X32_CALLS, refuses: true },
    ...numbers.map((value) => ({ jump: JUMP_IF_EQUAL, value, refuses: true })),
  ]
  const lines: [code: number, value: number, refuses?: boolean][] = tests.flatMap((test) => [
    ...('load' in test ? [[LOAD_WORD, test.load] satisfies [number, number]] : []),
    [test.jump, test.value, test.refuses] satisfies [number, number, boolean],
  ])
  lines.push([RETURN, ALLOW], [RETURN, REFUSE_WITH_EPERM])
  const program = Buffer.alloc(lines.length * 8)
  for (const [at, [code, value, refuses]] of lines.entries()) {
    const toRefusal = lines.length - 1 - (at + 1)
    program.writeUInt16LE(code, at * 8)
    program.writeUInt8(refuses === true ? toRefusal : 0, at * 8 + 2)
    program.writeUInt8(refuses === false ? toRefusal : 0, at * 8 + 3)
    program.writeUInt32LE(value, at * 8 + 4)
  }
  return program
}

/**
 * Leaves the keyring of our login for an empty one, gives up gaining rights, and puts the filter in its place. All that
 * it starts keeps the filter. Having no such keyring, or too many already, does no harm: the filter refuses them all.
 */
const APPLY = `
my ($prctl, $keyctl, $filter) = (shift() + 0, shift() + 0, pack("H*", shift));
my $program = pack("Sx![P]P", length($filter) / 8, $filter);
syscall($keyctl, 1, 0);
syscall($prctl, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
syscall($prctl, 22, 2, $program) == 0 or die "seccomp: $!";
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!";
`

/** What a command line begins with to have the filter; undefined where it cannot be put in place. */
export async function findCallFilter(
  env: Readonly<Record<string, string>>,
  options: { mayMount: boolean },
): Promise<readonly string[] | undefined> {
  const machine = process.arch
  if (machine !== 'x64' && machine !== 'arm64') return undefined
  const { prctl, keyctl } = MACHINES[machine]
  const filter = buildCallFilter(machine, options).toString('hex')
  const lead = ['perl', '-e', APPLY, String(prctl), String(keyctl), filter] as const
  const { exitCode } = await runProgram([...lead, 'true'], { env })
  return exitCode === 0 ? lead : undefined
}
