import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Duplex } from 'node:stream'
import { expect, test } from 'vitest'
import type { ContainerEngine } from './container-engine.ts'
import { startInContainer } from './execution.ts'
import type { ProcessTracker } from './process-tracker.ts'

function frame(text: string): Buffer {
  const head = Buffer.alloc(8)
  head.writeUInt8(1, 0)
  head.writeUInt32BE(text.length, 4)
  return Buffer.concat([head, Buffer.from(text)])
}

/** A connection to a command that names its process, and ends when its input does. */
function connection(): Duplex {
  const duplex = new Duplex({
    read() {},
    write: (_, __, done) => done(),
    final(done) {
      duplex.push(null)
      done()
    },
  })
  duplex.push(frame('12\n'))
  return duplex
}

test('startInContainer() keeps the exit code if the engine forgets the command while leftover processes are ended', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'polar-execution-'))
  let isForgotten = false
  const engine = {
    async call(method: string) {
      if (method === 'POST') return { Id: 'exec' }
      if (isForgotten) throw new Error('no such exec session')
      return { Running: false, ExitCode: 3, Pid: 0 }
    },
    hijack: async () => connection(),
  } as unknown as ContainerEngine
  const tracker: ProcessTracker = {
    expect: async () => ({ [Symbol.dispose]() {} }),
    open: async () => ({
      isRunning: async () => false,
      signal: async () => {},
      close: async () => void (isForgotten = true),
      leave: async () => {},
    }),
    countOutOfMemory: async () => undefined,
    stats: async () => ({}),
  }
  const spec = { command: ['false'] as const, cwd: '/', env: {}, leftovers: 'end' as const }
  const deps = { engine, containerId: 'c', user: '0:0', id: 'exec-1', folder, tracker, now: Date.now }
  try {
    const execution = await startInContainer(spec, deps)
    expect(await execution.result).toMatchObject({ exitCode: 3, signal: null })
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})
