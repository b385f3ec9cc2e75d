import type { Socket } from 'node:net'

/**
 * One kind of sandbox: isolates a hostile program with a shell. Knows nothing of sessions, harnesses or rewards. Every
 * operation has a time limit, given as a signal or in milliseconds.
 */
export interface Runtime extends AsyncDisposable {
  readonly kind: string
  readonly capabilities: RuntimeCapabilities
  /**
   * Whether this runtime works on this machine, and what is missing. For `polar doctor`, and for tests that must give a
   * reason for skipping.
   */
  check(signal: AbortSignal): Promise<RuntimeCheck>
  /**
   * Resolves when the sandbox can execute commands. Everything that was created is removed when this rejects or the
   * signal is aborted.
   */
  start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox>
  /** Returns the sandboxes of this kind on this machine, including those of dead processes. */
  list(): Promise<SandboxInfo[]>
  /** Removes a sandbox that `list` returned, with everything that belongs to it. An unknown id is no error. */
  remove(id: string): Promise<void>
  /**
   * Removes the snapshots that exceed the limits of the config, least recently used first, and returns their names.
   * Keeps snapshots that a sandbox uses. Also runs whenever a snapshot is made. Absent without `supportsSnapshots`.
   */
  removeOldSnapshots?(): Promise<string[]>
  /**
   * Removes a snapshot that will not be used again; keeps it if a sandbox or another snapshot uses it. Absent without
   * `supportsSnapshots`.
   */
  removeSnapshot?(name: string): Promise<void>
}

export interface RuntimeDeps {
  /** Folder of the runtime's own files. Processes with the same folder see each other's sandboxes. */
  dir: string
  /** Unix milliseconds. */
  now(): number
  /** Most sandboxes that run commands at the same time, over all kinds; absent: 8. */
  sandboxes?: number
}

/** What a runtime enforces. Shared code reads these fields and never tests for the kind. */
export interface RuntimeCapabilities {
  /** Whether commands cannot reach the file system of the machine, except for mounts. */
  isolatesFiles: boolean
  /** Whether commands cannot see or signal processes of the machine. */
  isolatesProcesses: boolean
  /** The network policies that are enforced. */
  networks: readonly NetworkPolicy['kind'][]
  /**
   * The limits that are enforced on this machine, by the kernel or, for memory without control groups, by this process.
   */
  limits: readonly (keyof SandboxLimits)[]
  /** Whether a sandbox starts from an image, from the machine's own files, or from either. */
  images: 'required' | 'optional' | 'none'
  supportsSnapshots: boolean
}

export type RuntimeCheck = { isUsable: true; notes: readonly string[] } | { isUsable: false; reason: string }

export interface SandboxSpec {
  /** Letters, digits and dashes. Part of the names of containers, folders and control groups. */
  id: string
  /** Image or root folder; absent: the machine's own files, read-only. */
  image?: string
  /** Working directory of commands. Created if absent; writable. */
  workdir: string
  /**
   * Folders besides the workdir that commands can write to. Created if absent; each is at or below the first. They are
   * no mount points: a command can remove those below the first. A runtime that does not isolate files creates them
   * elsewhere and replaces their paths in the values of `env`.
   */
  folders?: readonly string[]
  /** The whole environment, besides PATH and HOME if absent, and the address of the proxy with `allow`. */
  env: Readonly<Record<string, string>>
  limits: SandboxLimits
  network: NetworkPolicy
  /** How commands reach the model, independent of the network policy. */
  socket?: SandboxSocket
  mounts: readonly Mount[]
  /** Name of the snapshot that the workdir starts from. */
  snapshot?: string
  /** Session, task and node, for people and for the removal of expired sandboxes. */
  labels: Readonly<Record<string, string>>
  /** Unix milliseconds at which the lease ends; an expired sandbox is removed. `renew` extends the lease. */
  leaseUntil: number
}

/** Absent: not limited by this runtime. */
export interface SandboxLimits {
  cpus?: number
  memoryMb?: number
  pids?: number
  /** Limit of written data. */
  diskMb?: number
}

/**
 * What commands can reach besides the socket. `none`: nothing. `allow`: these host names, on any port. `open`:
 * everything that the machine reaches, including services of the machine if the runtime cannot separate them.
 */
export type NetworkPolicy = { kind: 'none' } | { kind: 'allow'; hosts: readonly string[] } | { kind: 'open' }

/**
 * The only connection out of an isolated sandbox: a TCP port on its own loopback interface, whose connections the node
 * accepts. Nothing else of the machine is reachable through it, so `accept` decides what a sandbox can request.
 */
export interface SandboxSocket {
  /**
   * On 127.0.0.1 inside. Only a preference if the sandbox shares the machine's network; `socketPort` is the actual
   * port.
   */
  port: number
  accept(socket: Socket): void
  /**
   * Sockets arrive paused, and no byte has been read from them, so that they can be passed to another process. A reader
   * in this process must call `resume()`. Absent: sockets are not paused.
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
  /** Working directory as commands see it. Differs from the spec if the runtime does not isolate files. */
  readonly workdir: string
  /** Port of the socket; undefined without a socket. */
  readonly socketPort: number | undefined
  /** A command that is not found exits with 127, a command whose `cwd` cannot be entered with 126. */
  exec(spec: ExecSpec): Promise<Execution>
  /** Copies a file or a tree from this machine to the path `target`; keeps modes and copies links as links. */
  upload(source: string, target: string, signal: AbortSignal): Promise<void>
  /**
   * Copies a file or a tree to `target` on this machine, which must not exist. No file of the sandbox can make this
   * write outside of `target` or exceed the limits: links are not followed; devices and paths that leave the tree are
   * rejected.
   */
  download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void>
  writeFile(path: string, data: string | Uint8Array, options?: { mode?: number }): Promise<void>
  /** Throws `workspace.too-large` for a file of more than `maxBytes`. */
  readFile(path: string, options: { maxBytes: number }): Promise<Buffer>
  stats(): Promise<SandboxStats>
  renew(leaseUntil: number): Promise<void>
  /**
   * Stores the files written so far under a name that a later spec can start from. An existing snapshot stays
   * unchanged. Only with `supportsSnapshots`.
   */
  snapshot(name: string): Promise<void>
  /** Ends all processes; the files stay readable. Idempotent. */
  freeze(): Promise<void>
  /** Ends all processes within two seconds and removes all files. Idempotent. */
  stop(): Promise<void>
}

export interface CopyLimits {
  maxBytes: number
  maxFiles: number
}

export interface ExecSpec {
  command: readonly [string, ...string[]]
  /** Absolute, or relative to the workdir, like all paths inside. */
  cwd?: string
  /** Added to the environment of the sandbox. */
  env?: Readonly<Record<string, string>>
  /** Absent: empty. */
  stdin?: string | Uint8Array
  timeoutMs?: number
  /** Limit of stored output, for each of stdout and stderr; further output is counted and dropped. Absent: 16 MiB. */
  outputBytes?: number
  /**
   * What happens to processes that the command leaves behind, however they hide. `end`: they end with the command.
   * `keep`: they live as long as the sandbox, for servers that a prepare step starts.
   */
  leftovers: 'end' | 'keep'
}

/** A running or finished command. */
export interface Execution {
  readonly id: string
  /**
   * Yields the output from the byte `from` until the command ends. The output is stored on disk, so any number of
   * readers can resume at an offset.
   */
  output(stream: 'stdout' | 'stderr', from?: number): AsyncIterable<Buffer>
  /** Never rejects: failures are part of the result. */
  readonly result: Promise<ExecResult>
  /** Sends a signal to the command's first process only. */
  signal(name: NodeJS.Signals): Promise<void>
  /** Kills all processes of the command; resolves when they are gone. */
  kill(): Promise<void>
}

export interface ExecResult {
  /** Null if a signal ended the command. */
  exitCode: number | null
  signal: NodeJS.Signals | null
  isTimedOut: boolean
  /** Whether the command or a descendant was killed for lack of memory; undefined if unknown. */
  isOutOfMemory?: boolean
  /** Bytes written, stored or not. */
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
