import type { SandboxStats } from '../runtime.ts'

/** One command's processes in a container. */
export interface CommandProcesses {
  /** Whether its first process has not ended. */
  isRunning(): Promise<boolean>
  /** To its first process. */
  signal(name: NodeJS.Signals): Promise<void>
  /** Ends all of it, the container with it when nothing else helps; resolves when nothing is left. Idempotent. */
  close(): Promise<void>
  /** Its first process has ended; what it left behind may stay. */
  leave(): Promise<void>
}

export interface TrackedCommand {
  execId: string
  /** Of its first process, as the container counts. */
  insidePid: number
  /** Whether something of it may stay. */
  mayLeave: boolean
}

/** How the processes of a container's commands are told apart, which the engine cannot do. */
export interface ProcessTracker {
  /** Held while a command is brought in: until it has its processes, nobody knows its processes. */
  expect(): Promise<Disposable>
  /** The first process is still ours at that moment: it waits until it is told to become the command. */
  open(command: TrackedCommand): Promise<CommandProcesses>
  /** How often the kernel has killed for want of memory so far; undefined where that cannot be known. */
  countOutOfMemory(): Promise<number | undefined>
  stats(): Promise<SandboxStats>
}
