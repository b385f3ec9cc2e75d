/**
 * An innocent client of a process under attack, in a separate process, because the attacker is too busy to measure time. Its
 * argument is a `Neighbour`. Calls until its standard input ends, then prints a `NeighbourReport`.
 */
import { readFileSync } from 'node:fs'
import { request, type IncomingMessage } from 'node:http'
import { setTimeout } from 'node:timers/promises'

export interface Neighbour {
  url: string
  method: string
  headers: Readonly<Record<string, string>>
  body?: string
  /** Proxy of the call. */
  proxy?: string
  /** Processes that serve the call. */
  pids: readonly number[]
}

export interface NeighbourReport {
  calls: number
  /** Duration of the slowest call. */
  longestMs: number
  /** Maximum CPU time of the serving processes during one call: the delay of a call on an idle machine. */
  longestBusyMs: number
  /** The problem of a call, if any. */
  problem?: string
}

const PAUSE_MS = 20

const neighbour = JSON.parse(process.argv[2] ?? '') as Neighbour
const report: NeighbourReport = { calls: 0, longestMs: 0, longestBusyMs: 0 }
let isOver = false
process.stdin.resume().on('end', () => (isOver = true))

await call()
process.stdout.write('ready\n')
while (!isOver && report.problem === undefined) {
  const [startedAt, busy] = [performance.now(), busyMs()]
  await call().catch((error: unknown) => (report.problem = String(error)))
  report.calls += 1
  report.longestMs = Math.max(report.longestMs, Math.round(performance.now() - startedAt))
  report.longestBusyMs = Math.max(report.longestBusyMs, Math.round(busyMs() - busy))
  await setTimeout(PAUSE_MS)
}
process.stdout.write(`${JSON.stringify(report)}\n`)
process.exit()

async function call(): Promise<void> {
  const { url, method, headers, body, proxy } = neighbour
  const place = new URL(proxy ?? url)
  const { pathname, search } = new URL(url)
  const path = proxy === undefined ? pathname + search : url
  const answer = await new Promise<IncomingMessage>((resolve, reject) => {
    request({ host: place.hostname, port: place.port, path, method, headers, agent: false }, resolve)
      .on('error', reject)
      .end(body)
  })
  const text = (await answer.setEncoding('utf8').toArray()).join('')
  if (answer.statusCode !== 200) throw new Error(`a neighbour got ${answer.statusCode}: ${text.slice(0, 300)}`)
}

/** Returns the CPU time of the main threads. */
function busyMs(): number {
  const times = neighbour.pids.map((pid) => {
    const text = readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8')
    return Number(text.split(' ')[0]) / 1e6
  })
  return Math.max(...times)
}
