import type { SandboxStats } from '../runtime.ts'

/** The processes of one command in a container. */
export interface CommandProcesses {
  /** Whether the first process is alive. */
  isRunning(): Promise<boolean>
  /** Sends a signal to the first process. */
  signal(name: NodeJS.Signals): Promise<void>
  /** Ends all processes, if necessary with the container; resolves when none is left. Idempotent. */
  close(): Promise<void>
  /** Called when the first process has ended and its remaining processes may stay. */
  leave(): Promise<void>
}

export interface TrackedCommand {
  execId: string
  /** Pid of the first process inside the container. */
  insidePid: number
  /** Whether processes of the command may stay after its end. */
  mayLeave: boolean
}

/** Determines which processes of a container belong to which command, which the engine does not know. */
export interface ProcessTracker {
  /** Held while a command starts: until `open`, its processes are unknown. */
  expect(): Promise<Disposable>
  /** Called while the first process still waits for the line that makes it execute the command. */
  open(command: TrackedCommand): Promise<CommandProcesses>
  /** Number of processes that the kernel has killed for lack of memory; undefined if unknown. */
  countOutOfMemory(): Promise<number | undefined>
  stats(): Promise<SandboxStats>
}
