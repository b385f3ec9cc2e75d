/**
 * A sandbox, for those who work in it without caring which kind it is. Paths are absolute or relative to `workdir`. What
 * the sandbox itself prepared can make none of this write or read outside of it; broken files of its own make it throw
 * RolloutErrors of the boundary `workspace`, which are the policy's doing in the agent's sandbox.
 */
export interface Workspace {
  readonly workdir: string
  /** Resolves however the command ends; rejects only when it could not be run at all. Nothing it started outlives it. */
  run(command: WorkspaceCommand): Promise<CommandResult>
  /** Throws `workspace.file-missing`, or `workspace.too-large` for a file larger than that. */
  readFile(path: string, options: { maxBytes: number }): Promise<Buffer>
  writeFile(path: string, data: string | Uint8Array, options?: { mode?: number }): Promise<void>
  /** A file or tree of this machine; `target` is what it will be called there. */
  upload(source: string, target: string): Promise<void>
  /**
   * The other way. `target` must not exist yet. The copy has no links, so that reading it reads nothing else of this machine:
   * a symbolic link becomes a copy of what it names within `source`. A link that names anything else is left out and
   * reported; a `source` that is a link throws `workspace.unsafe-file`. `links: 'keep'` keeps links as they are, for a
   * caller that never follows them.
   */
  download(source: string, target: string, options: DownloadOptions): Promise<readonly LeftOut[]>
}

export interface DownloadOptions {
  maxBytes: number
  maxFiles: number
  /** Absent: `copy`. */
  links?: 'copy' | 'keep'
}

/** A file of a sandbox that a copy does not have. */
export interface LeftOut {
  /** Relative to what was copied. */
  path: string
  why: string
}

export interface WorkspaceCommand {
  /** A program and its arguments; no shell unless it is one. */
  command: readonly [string, ...string[]]
  cwd?: string
  env?: Readonly<Record<string, string>>
  /** Absent: empty. */
  stdin?: string | Uint8Array
  timeoutMs?: number
  /** Most of each of stdout and stderr that is kept. Absent: 4 MiB. */
  outputBytes?: number
}

export interface CommandResult {
  /** Null when a signal ended it. */
  exitCode: number | null
  signal: NodeJS.Signals | null
  isTimedOut: boolean
  /** Undefined where that cannot be known. */
  isOutOfMemory?: boolean
  /** As much as was kept. */
  stdout: Buffer
  stderr: Buffer
  /** All that it wrote, kept or not. */
  stdoutBytes: number
  stderrBytes: number
  durationMs: number
}
