import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { peakMemoryMb, startChild } from './child.ts'
import { type Attack, hostileAttack } from './hostile-request.ts'
import type { NeighbourReport } from './neighbour-process.ts'
import { Random } from './random.ts'
import { openSurface, type SurfaceName } from './surfaces.ts'

export interface FuzzOptions {
  seed: number
  count: number
  maxBytes: number
  /** Number of concurrent attacks. */
  width: number
}

export interface FuzzReport {
  surface: SurfaceName
  attempts: number
  /** Number of answers by status; `none` if the connection was closed without an answer. */
  answers: Record<string, number>
  /** Statuses of 500, which mean a defect. */
  defects: number
  peakMemoryMb: number
  neighbour: NeighbourReport
}

const PATIENCE_MS = 30_000

/** Attacks one surface. Rejects if its process ends or a neighbour receives no answer. */
export async function runFuzz(surface: SurfaceName, options: FuzzOptions): Promise<FuzzReport> {
  await using target = await openSurface(surface)
  await using neighbour = await startChild([
    join(import.meta.dirname, 'neighbour-process.ts'),
    JSON.stringify(target.neighbour),
  ])
  const random = new Random(options.seed)
  const answers: Record<string, number> = {}
  let begun = 0
  const attack = async (): Promise<void> => {
    while (begun < options.count) {
      begun += 1
      const answer = await send(hostileAttack(random, target.targets, options.maxBytes), target.url)
      answers[answer] = (answers[answer] ?? 0) + 1
    }
  }
  const died = once(target.child.process, 'exit').then(() => {
    throw new Error(`the process of ${surface} ended:\n${target.child.log()}`)
  })
  died.catch(() => {})
  await Promise.race([Promise.all(Array.from({ length: options.width }, attack)), died])
  const { problem, ...calls } = JSON.parse(await neighbour.finish()) as NeighbourReport
  if (problem !== undefined) throw new Error(`${surface}: ${problem}`)
  return {
    surface,
    attempts: begun,
    answers,
    defects: answers['500'] ?? 0,
    peakMemoryMb: await peakMemoryMb(target.child.process.pid as number),
    neighbour: calls,
  }
}

/** Returns the status of the answer, `none` if the connection was closed without an answer, `late` after the time limit. */
async function send({ pieces, pauseMs, end }: Attack, { hostname, port }: URL): Promise<string> {
  const socket = connect(Number(port), hostname)
  let heard = ''
  let isLate = false
  socket.on('data', (piece: Buffer) => (heard = heard.length < 100 ? heard + piece.toString('latin1') : heard))
  socket.on('error', () => socket.destroy())
  const closed = once(socket, 'close').catch(() => undefined)
  const answered = new Promise<void>((resolve) => socket.once('data', () => resolve()))
  try {
    for (const piece of pieces) {
      if (socket.destroyed || heard !== '') break
      if (!socket.write(piece)) await Promise.race([drained(socket), answered, closed])
      if (pauseMs > 0) await setTimeout(pauseMs)
    }
    if (end === 'half-close') socket.end()
    if (end !== 'cut') isLate = (await Promise.race([answered, closed, patience(PATIENCE_MS)])) === 'late'
  } finally {
    socket.destroy()
  }
  return /^HTTP\/1\.[01] (\d{3})/.exec(heard)?.[1] ?? (isLate ? 'late' : 'none')
}

function patience(ms: number): Promise<'late'> {
  return setTimeout(ms, 'late', { ref: false })
}

function drained(socket: Socket): Promise<unknown> {
  return once(socket, 'drain').catch(() => undefined)
}
