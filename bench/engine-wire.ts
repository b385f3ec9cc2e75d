import { Pool, type Dispatcher } from 'undici'
import { cpuMsOf, startEngineProcess } from './support/child.ts'
import { printTable } from './support/table.ts'

const SECONDS_EACH = 2.5
const SAMPLED_TOKENS = 2000
const SCRIPT = `
scenarios:
  load: [{tokens: ${SAMPLED_TOKENS}}]
default: {text: ok}
`

interface Case {
  name: string
  body: string
  /** Tokens of each answer, for the rate. */
  tokens: number
}

interface Measured {
  requestsPerSecond: number
  megabytesPerSecond: number
  /** Processor time of the engine, which does not depend on other work of the machine. */
  cpuMsPerRequest: number
  /** Cores that the engine used; near 1, the engine is the limit and not the caller. */
  engineCores: number
}

/** Measures the HTTP server of the tiny engine in a separate process: whether it can be used as a load source. */
export async function benchEngineWire(): Promise<void> {
  await using engine = await startEngineProcess(SCRIPT)
  const rows: string[][] = []
  for (const one of cases()) {
    for (const connections of [1, 32]) {
      const measured = await measure(engine.ready.url, engine.pid, one, connections)
      rows.push([
        one.name,
        String(connections),
        measured.requestsPerSecond.toFixed(0),
        (measured.requestsPerSecond * one.tokens).toFixed(0),
        measured.megabytesPerSecond.toFixed(0),
        `${measured.cpuMsPerRequest.toFixed(2)} ms`,
        measured.engineCores.toFixed(2),
      ])
    }
  }
  printTable([['case', 'connections', 'requests/s', 'tokens/s', 'MB/s', 'engine CPU/request', 'engine cores'], ...rows])
}

function cases(): Case[] {
  const ask = (text: string, more: object = {}) =>
    JSON.stringify({ messages: [{ role: 'user', content: text }], ...more })
  const capture = { stream: true, return_token_ids: true, logprobs: true, stream_options: { include_usage: true } }
  return [
    { name: 'short answer', body: ask('hello'), tokens: 2 },
    { name: '50 KB prompt', body: ask('What is in these files? '.repeat(2100)), tokens: 2 },
    {
      name: `${SAMPLED_TOKENS} tokens, text only`,
      body: ask('SCRIPT:load', { stream: true }),
      tokens: SAMPLED_TOKENS + 1,
    },
    { name: `${SAMPLED_TOKENS} tokens, ids, logprobs`, body: ask('SCRIPT:load', capture), tokens: SAMPLED_TOKENS + 1 },
  ]
}

async function measure(url: string, pid: number, { body }: Case, connections: number): Promise<Measured> {
  const pool = new Pool(url, { connections, pipelining: 1 })
  try {
    await call(pool, body)
    let requests = 0
    let bytes = 0
    const cpuBefore = (await cpuMsOf(pid)) ?? 0
    const start = performance.now()
    const end = start + SECONDS_EACH * 1000
    const caller = async () => {
      while (performance.now() < end) {
        const received = await call(pool, body)
        bytes += received
        requests += 1
      }
    }
    await Promise.all(Array.from({ length: connections }, caller))
    const seconds = (performance.now() - start) / 1000
    const cpuMs = ((await cpuMsOf(pid)) ?? 0) - cpuBefore
    return {
      requestsPerSecond: requests / seconds,
      megabytesPerSecond: bytes / seconds / 1e6,
      cpuMsPerRequest: cpuMs / requests,
      engineCores: cpuMs / 1000 / seconds,
    }
  } finally {
    await pool.close()
  }
}

/** Returns the bytes of the answer; more work would make the caller the limit. */
function call(pool: Pool, body: string): Promise<number> {
  return new Promise((resolve, reject) => {
    let bytes = 0
    const handler: Dispatcher.DispatchHandler = {
      onRequestStart() {},
      onResponseStart(_controller, status) {
        if (status !== 200) reject(new Error(`the engine answered ${status}`))
      },
      onResponseData(_controller, chunk) {
        bytes += chunk.length
      },
      onResponseEnd() {
        resolve(bytes)
      },
      onResponseError(_controller, error) {
        reject(error)
      },
    }
    const headers = { 'content-type': 'application/json' }
    pool.dispatch({ path: '/v1/chat/completions', method: 'POST', headers, body }, handler)
  })
}
