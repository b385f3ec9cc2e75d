import * as z from 'zod'
import { onAbort } from '../../../../lib/async/until-aborted.ts'
import type { ContainerEngine } from './container-engine.ts'
import { readFrames } from './frames.ts'

const OUTPUT_BYTES = 64 * 1024

const Created = z.looseObject({ Id: z.string() })
const Inspected = z.looseObject({ Running: z.boolean(), ExitCode: z.int().nullish(), Pid: z.int() })

export interface ExecCreation {
  command: readonly string[]
  user: string
  env?: Readonly<Record<string, string>>
}

export async function createExec(
  engine: ContainerEngine,
  containerId: string,
  creation: ExecCreation,
): Promise<string> {
  const answer = await engine.call('POST', `/containers/${containerId}/exec`, {
    json: {
      AttachStdin: true,
      AttachStdout: true,
      AttachStderr: true,
      Tty: false,
      Cmd: creation.command,
      Env: Object.entries(creation.env ?? {}).map(([name, value]) => `${name}=${value}`),
      User: creation.user,
      WorkingDir: '/',
    },
  })
  return Created.parse(answer).Id
}

export function startExec(engine: ContainerEngine, execId: string): ReturnType<ContainerEngine['hijack']> {
  return engine.hijack(`/exec/${execId}/start`, { Detach: false, Tty: false })
}

export async function inspectExec(engine: ContainerEngine, execId: string): Promise<z.infer<typeof Inspected>> {
  return Inspected.parse(await engine.call('GET', `/exec/${execId}/json`))
}

/** Runs a helper program inside and waits for its end. The container has a shell and few other programs. */
export async function runInside(
  engine: ContainerEngine,
  containerId: string,
  creation: ExecCreation,
  signal?: AbortSignal,
): Promise<{ exitCode: number; stdout: string; stderr: string }> {
  signal?.throwIfAborted()
  const execId = await createExec(engine, containerId, creation)
  const socket = await startExec(engine, execId)
  socket.on('error', () => socket.destroy())
  using _ = onAbort(signal, () => socket.destroy())
  socket.end()
  const texts = { stdout: '', stderr: '' }
  try {
    for await (const { stream, data } of readFrames(socket))
      if (texts[stream].length < OUTPUT_BYTES) texts[stream] += data.toString('latin1')
  } catch {
    // The connection broke; the exit code tells whether the program succeeded.
  }
  signal?.throwIfAborted()
  const { ExitCode: exitCode } = await inspectExec(engine, execId)
  return { exitCode: exitCode ?? 255, ...texts }
}
