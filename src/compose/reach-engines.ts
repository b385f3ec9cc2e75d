import { setTimeout as sleep } from 'node:timers/promises'
import { RolloutError } from '../model/failure.ts'

export interface Waiting {
  /** How long to wait until the first engine is ready; 0: do not wait. */
  waitMs?: number
  signal?: AbortSignal
  /** Receives a sentence whenever the reason for the wait changes. */
  onWait?: (sentence: string) => void
}

export interface Reached<T> {
  ready: readonly [T, ...T[]]
  /** URLs of engines that are not ready, with the reason. */
  down: readonly { url: string; why: string }[]
}

const POLL_MS = 1000
/** How long the other engines may take after the first one is ready. */
const GRACE_MS = 10_000

/**
 * Opens the engines at `urls` at the same time, and again until at least one is ready. Engines that are not ready by then are
 * listed as down. Rejects with the error of an engine that waiting does not help, such as a wrong key, and with the error
 * of the first engine when the time is over.
 */
export async function reachEngines<T>(
  urls: readonly string[],
  open: (url: string, signal: AbortSignal) => Promise<T>,
  { waitMs = 0, signal, onWait }: Waiting = {},
): Promise<Reached<T>> {
  const startedAt = performance.now()
  let said = ''
  for (;;) {
    const results = await openOnce(urls, open, signal)
    signal?.throwIfAborted()
    const failed = results.flatMap((result, i) =>
      result.status === 'rejected' ? [{ url: urls[i]!, error: result.reason as unknown }] : [],
    )
    const hopeless = failed.find(({ error }) => !isNotReady(error))
    const [first, ...others] = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
    if (first !== undefined && hopeless === undefined) {
      return { ready: [first, ...others], down: failed.map(({ url, error }) => ({ url, why: textOf(error) })) }
    }
    if (hopeless !== undefined) throw hopeless.error
    const { error } = failed[0]!
    if (performance.now() - startedAt >= waitMs) throw afterWait(error, waitMs)
    const why = failed.map((one) => textOf(one.error)).join(' ')
    if (why !== said) onWait?.(`${why} Waiting up to ${waitMs / 1000} s until it is ready.`)
    said = why
    await sleep(POLL_MS, undefined, { signal }).catch(() => signal?.throwIfAborted())
  }
}

/** Opens every engine once. When the first is ready, the others have a short time left. */
async function openOnce<T>(
  urls: readonly string[],
  open: (url: string, signal: AbortSignal) => Promise<T>,
  signal: AbortSignal | undefined,
): Promise<PromiseSettledResult<T>[]> {
  const late = new AbortController()
  let timer: NodeJS.Timeout | undefined
  const stop = signal === undefined ? late.signal : AbortSignal.any([late.signal, signal])
  const opened = urls.map(async (url) => {
    const result = await open(url, stop)
    timer ??= setTimeout(() => late.abort(new RolloutError('upstream.timeout', 'It is busy.')), GRACE_MS)
    return result
  })
  try {
    return await Promise.allSettled(opened)
  } finally {
    clearTimeout(timer)
  }
}

const NOT_READY: ReadonlySet<string> = new Set([
  'upstream.unreachable',
  'upstream.reset',
  'upstream.timeout',
  'upstream.overloaded',
  'upstream.rate-limited',
])

/** Whether the engine may become ready: it does not listen yet, loads its weights, or is busy. */
function isNotReady(error: unknown): boolean {
  return error instanceof RolloutError && NOT_READY.has(error.code)
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

function afterWait(error: unknown, waitMs: number): unknown {
  if (waitMs === 0 || !(error instanceof RolloutError)) return error
  const { code, message, ...fields } = error.failure
  return new RolloutError(code, `${message} Waited ${waitMs / 1000} s.`, { ...fields, cause: error })
}
