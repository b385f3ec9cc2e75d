import type { Socket } from 'node:net'

/**
 * One kind of sandbox: how a hostile program with a shell is kept apart from everything else. Says nothing of sessions,
 * harnesses or rewards. All times are limits given as signals or milliseconds; nothing waits for ever.
 */
export interface Runtime extends AsyncDisposable {
  readonly kind: string
  readonly capabilities: RuntimeCapabilities
  /** Whether it can run here, and what is missing; for `polar doctor` and for tests that must say why they skip. */
  check(signal: AbortSignal): Promise<RuntimeCheck>
  /** Ready for exec when it resolves. What was begun is taken back when it rejects or the signal fires. */
  start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox>
  /** Sandboxes of this kind on this machine, also those of processes that died. */
  list(): Promise<SandboxInfo[]>
  /** Removes one that `list` named, and all that belongs to it. Nothing to remove is no error. */
  remove(id: string): Promise<void>
  /**
   * Removes snapshots that its config does not keep, and gives their names: the least recently used first, and never one
   * that a sandbox stands on. Happens by itself whenever one is made. Absent without `supportsSnapshots`.
   */
  removeOldSnapshots?(): Promise<string[]>
  /** Removes one that nobody will start from again, unless something stands on it. Absent as above. */
  removeSnapshot?(name: string): Promise<void>
}

export interface RuntimeDeps {
  /** Where it keeps what belongs to its sandboxes. Processes with the same folder see each other's. */
  dir: string
  /** Unix milliseconds. */
  now(): number
  /** Most sandboxes with running commands at a time, over all kinds; absent: 8. */
  sandboxes?: number
}

/** What a kind of sandbox really does; shared code asks this and never for the kind. */
export interface RuntimeCapabilities {
  /** Whether the file system of the machine is out of its reach, but for its mounts. */
  isolatesFiles: boolean
  /** Whether processes of the machine are out of its reach and sight. */
  isolatesProcesses: boolean
  /** Which network policies are enforced, not merely asked for. */
  networks: readonly NetworkPolicy['kind'][]
  /** Which limits are enforced here, by the kernel or, for memory without control groups, by this process. */
  limits: readonly (keyof SandboxLimits)[]
  /** Whether it starts from an image, from the machine's own files, or can do either. */
  images: 'required' | 'optional' | 'none'
  supportsSnapshots: boolean
}

export type RuntimeCheck = { isUsable: true; notes: readonly string[] } | { isUsable: false; reason: string }

export interface SandboxSpec {
  /** Letters, digits and dashes. Names of containers, folders and control groups come from it. */
  id: string
  /** Image or root folder; absent where the machine's own files serve, seen read-only. */
  image?: string
  /** Where commands run; made if it is not there, and writable. */
  workdir: string
  /**
   * Folders besides the workdir that commands can write to, made if absent; each is at or below the first. Not mount
   * points: a command can remove those below the first. A runtime that does not isolate files makes them elsewhere, and
   * `env` values that name one of them, or a path in one, name that place.
   */
  folders?: readonly string[]
  /** All that is in the environment, besides PATH and HOME where absent, and a proxy's address with `allow`. */
  env: Readonly<Record<string, string>>
  limits: SandboxLimits
  network: NetworkPolicy
  /** How the model is reached, whatever the network policy. */
  socket?: SandboxSocket
  mounts: readonly Mount[]
  /** What the workdir starts as: the result of an earlier `snapshot`. */
  snapshot?: string
  /** For people and for sweeping: session, task, node. */
  labels: Readonly<Record<string, string>>
  /** Unix milliseconds until which somebody cares for it; a sweep removes it afterwards. Renewed with `renew`. */
  leaseUntil: number
}

/** Absent: none of ours, whatever the machine has. */
export interface SandboxLimits {
  cpus?: number
  memoryMb?: number
  pids?: number
  /** Of what it writes. */
  diskMb?: number
}

/**
 * Whom it may talk to besides its socket. `none`: nobody. `allow`: those hosts, by name, on any port. `open`: everybody the
 * machine reaches, which includes services on the machine where the runtime cannot tell them apart.
 */
export type NetworkPolicy = { kind: 'none' } | { kind: 'allow'; hosts: readonly string[] } | { kind: 'open' }

/**
 * The one way out: a TCP port on the sandbox's own loopback whose connections are handed to us here. Nothing else of the
 * machine is reachable by it, so whoever accepts decides what can be asked for.
 */
export interface SandboxSocket {
  /** On 127.0.0.1 inside. A wish where the sandbox shares the machine's network; `socketPort` says what it became. */
  port: number
  accept(socket: Socket): void
  /**
   * Sockets arrive paused, and no byte has been read from them: such a socket can be passed to another process. Whoever
   * reads it here has to call `resume()`. Absent: sockets arrive as usual.
   */
  isPaused?: boolean
}

export interface Mount {
  source: string
  target: string
  isReadOnly: boolean
}

export interface Sandbox extends AsyncDisposable {
  readonly id: string
  /** Where commands run, as commands see it; not what was asked for where a sandbox sees the machine's own files. */
  readonly workdir: string
  /** Where its socket is; undefined without one. */
  readonly socketPort: number | undefined
  /** A command that cannot be found ends with 127, one whose `cwd` cannot be entered with 126. */
  exec(spec: ExecSpec): Promise<Execution>
  /** A file or a whole tree from this machine, modes kept, links as links. `target` is what it will be called there. */
  upload(source: string, target: string, signal: AbortSignal): Promise<void>
  /**
   * The other way. Nothing the sandbox prepared can make this write outside of `target`, which must not exist yet, or
   * exceed the limits: links are not followed, devices and names that lead elsewhere are refused.
   */
  download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void>
  writeFile(path: string, data: string | Uint8Array, options?: { mode?: number }): Promise<void>
  /** Throws `workspace.too-large` for a file larger than that. */
  readFile(path: string, options: { maxBytes: number }): Promise<Buffer>
  stats(): Promise<SandboxStats>
  renew(leaseUntil: number): Promise<void>
  /**
   * Keeps what was written so far under a name that a later spec can start from; a name that is taken stays what it is.
   * Only with `supportsSnapshots`.
   */
  snapshot(name: string): Promise<void>
  /** Nothing in it runs any more, but its files can still be read. Idempotent. */
  freeze(): Promise<void>
  /** Ends all of it, for good, within two seconds, and removes what it wrote. Idempotent. */
  stop(): Promise<void>
}

export interface CopyLimits {
  maxBytes: number
  maxFiles: number
}

export interface ExecSpec {
  command: readonly [string, ...string[]]
  /** Absolute, or relative to the workdir, as are all paths inside. */
  cwd?: string
  /** On top of the sandbox's. */
  env?: Readonly<Record<string, string>>
  /** Absent: empty. */
  stdin?: string | Uint8Array
  timeoutMs?: number
  /** Most of each of stdout and stderr that is kept; what comes after is counted and thrown away. Absent: 16 MiB. */
  outputBytes?: number
  /**
   * What becomes of processes it leaves behind, however they hid. `end`: they end with it. `keep`: they live as long as the
   * sandbox, for servers that a preparing step starts.
   */
  leftovers: 'end' | 'keep'
}

/** A command that runs, or has run. */
export interface Execution {
  readonly id: string
  /**
   * What it wrote, from that byte on, until it ends. Kept on disk, not in memory: any number of readers may come, go and
   * come back with the offset they had reached.
   */
  output(stream: 'stdout' | 'stderr', from?: number): AsyncIterable<Buffer>
  /** Never rejects: what went wrong is in the result. */
  readonly result: Promise<ExecResult>
  /** To its first process only. */
  signal(name: NodeJS.Signals): Promise<void>
  /** All of its processes, at once; resolves when they are gone. */
  kill(): Promise<void>
}

export interface ExecResult {
  /** Null when a signal ended it. */
  exitCode: number | null
  signal: NodeJS.Signals | null
  isTimedOut: boolean
  /** It, or one of its children, was killed for want of memory; undefined where that cannot be known. */
  isOutOfMemory?: boolean
  /** Bytes written, kept or not. */
  stdoutBytes: number
  stderrBytes: number
  durationMs: number
}

export interface SandboxStats {
  cpuMs?: number
  memoryBytes?: number
  processes?: number
  diskBytes?: number
}

export interface SandboxInfo {
  id: string
  labels: Readonly<Record<string, string>>
  leaseUntil: number
  /** Unix milliseconds. */
  startedAt: number
}
