import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout } from 'node:timers/promises'
import { peakMemoryMb } from './child.ts'
import { type Attack, hostileAttack } from './hostile-request.ts'
import { Random } from './random.ts'
import { openSurface, type SurfaceName } from './surfaces.ts'

export interface FuzzOptions {
  seed: number
  count: number
  maxBytes: number
  /** Attacks at a time. */
  width: number
}

export interface FuzzReport {
  surface: SurfaceName
  attempts: number
  /** How often each status was answered; `none` where the connection was closed without one. */
  answers: Record<string, number>
  /** Statuses of 500, which mean a defect. */
  defects: number
  peakMemoryMb: number
  neighbourCalls: number
  /** Of the calls of a neighbour. */
  longestMs: number
}

const NEIGHBOUR_PAUSE_MS = 20
const PATIENCE_MS = 30_000

/** Attacks one surface. Rejects when its process ends or a neighbour is not answered. */
export async function runFuzz(surface: SurfaceName, options: FuzzOptions): Promise<FuzzReport> {
  await using target = await openSurface(surface)
  const random = new Random(options.seed)
  const answers: Record<string, number> = {}
  let [begun, longestMs, neighbourCalls, isOver] = [0, 0, 0, false]

  const attack = async (): Promise<void> => {
    while (begun < options.count) {
      begun += 1
      const answer = await send(hostileAttack(random, target.targets, options.maxBytes), target.url)
      answers[answer] = (answers[answer] ?? 0) + 1
    }
  }
  const live = async (): Promise<void> => {
    while (!isOver) {
      const startedAt = performance.now()
      await target.callAsNeighbour()
      longestMs = Math.max(longestMs, performance.now() - startedAt)
      neighbourCalls += 1
      await setTimeout(NEIGHBOUR_PAUSE_MS)
    }
  }
  await target.callAsNeighbour()
  const neighbour = live()
  const died = once(target.child.process, 'exit').then(() => {
    throw new Error(`the process of ${surface} ended:\n${target.child.log()}`)
  })
  died.catch(() => {})
  try {
    await Promise.race([Promise.all(Array.from({ length: options.width }, attack)), died, neighbour])
  } finally {
    isOver = true
  }
  await neighbour
  const peak = await peakMemoryMb(target.child.process.pid as number)
  return {
    surface,
    attempts: begun,
    answers,
    defects: answers['500'] ?? 0,
    peakMemoryMb: peak,
    neighbourCalls,
    longestMs: Math.round(longestMs),
  }
}

/** The status of the answer, `none` where the connection was closed without one, `late` where nothing came. */
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
