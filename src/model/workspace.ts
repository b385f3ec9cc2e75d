/**
 * Access to a sandbox of any kind. Paths are absolute or relative to `workdir`. Files of the sandbox cannot make a method read
 * or write outside of it. Unusable files of the sandbox cause RolloutErrors with the boundary `workspace`; in the agent's
 * sandbox these are caused by the agent.
 */
export interface Workspace {
  readonly workdir: string
  /**
   * Resolves with any exit of the command; rejects only if it could not be started. Ends all processes that it started.
   */
  run(command: WorkspaceCommand): Promise<CommandResult>
  /** Throws `workspace.file-missing`, or `workspace.too-large` for a file larger than `maxBytes`. */
  readFile(path: string, options: { maxBytes: number }): Promise<Buffer>
  writeFile(path: string, data: string | Uint8Array, options?: { mode?: number }): Promise<void>
  /** Copies a file or tree of this machine to the path `target` in the sandbox. */
  upload(source: string, target: string): Promise<void>
  /**
   * Copies a file or tree of the sandbox to this machine. `target` must not exist. The copy has no links, so that a reader of
   * the copy reads no other file of this machine: a symbolic link becomes a copy of its target within `source`. Other links
   * are left out and reported; a `source` that is a link throws `workspace.unsafe-file`. `links: 'keep'` keeps links, for
   * callers that never follow them.
   */
  download(source: string, target: string, options: DownloadOptions): Promise<readonly LeftOut[]>
}

export interface DownloadOptions {
  maxBytes: number
  maxFiles: number
  /** Absent: `copy`. */
  links?: 'copy' | 'keep'
}

/** A file of a sandbox that is missing from a copy. */
export interface LeftOut {
  /** Relative to the copied tree. */
  path: string
  why: string
}

export interface WorkspaceCommand {
  /** A program and its arguments. No shell is involved. */
  command: readonly [string, ...string[]]
  cwd?: string
  env?: Readonly<Record<string, string>>
  /** Absent: empty. */
  stdin?: string | Uint8Array
  timeoutMs?: number
  /** Limit of the kept output, for each of stdout and stderr. Absent: 4 MiB. */
  outputBytes?: number
}

export interface CommandResult {
  /** Null if a signal ended the command. */
  exitCode: number | null
  signal: NodeJS.Signals | null
  isTimedOut: boolean
  /** Undefined if unknown. */
  isOutOfMemory?: boolean
  /** Kept output. */
  stdout: Buffer
  stderr: Buffer
  /** Size of the whole output, kept or not. */
  stdoutBytes: number
  stderrBytes: number
  durationMs: number
}
