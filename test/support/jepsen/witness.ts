import { createHash } from 'node:crypto'
import type { SessionResult } from '../../../src/model/session.ts'
import { bashAgent } from '../bash-agent.ts'
import { type HistoryLog, monotonic, type ResultFact } from './history.ts'
import { forward, give, type HttpService, serve } from './http.ts'

const MARK = /witness (\S+) ([0-9a-f]{8}-[0-9a-f-]{27})/g

/**
 * Proxy of the engine for one node. Every run of an agent sends its own nonce to the model, so this records which session
 * ran on which node and how often, independent of nodes and server.
 */
export function openWitness(host: string, nodeId: string, engineUrl: string, log: HistoryLog): Promise<HttpService> {
  const seen = new Set<string>()
  return serve(host, async (request, outgoing) => {
    for (const [, sessionId = '', nonce = ''] of request.body.toString().matchAll(MARK)) {
      if (seen.has(nonce)) continue
      seen.add(nonce)
      log.add({ kind: 'run', nodeId, sessionId, nonce, at: monotonic() })
    }
    const gone = new AbortController()
    outgoing.on('close', () => gone.abort())
    give(await forward(engineUrl, request, gone.signal), outgoing)
  })
}

/** Command of an agent that sends its nonce to the model, waits, and exits with a given code. */
export function witnessAgent({ seconds, exitCode }: { seconds: number; exitCode: number }): string {
  return bashAgent(`
read -r nonce < /proc/sys/kernel/random/uuid
call "witness $POLAR_SESSION_ID $nonce" > /dev/null || exit 75
sleep ${seconds}
exit ${exitCode}
`)
}

/** Grades runs by their nonce: every run has a different reward, so that rewards cannot be confused. */
export function openGrader(host: string): Promise<HttpService> {
  return serve(host, async ({ body }, outgoing) => {
    const [nonce] = noncesIn(body.toString())
    const answer = nonce === undefined ? { metadata: {} } : { outcome_reward: rewardOf(nonce), metadata: {} }
    outgoing.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
  })
}

export function rewardOf(nonce: string): number {
  return Number.parseInt(nonce.slice(0, 6), 16) / 2 ** 24
}

export function toResultFact(result: SessionResult): ResultFact {
  return {
    sessionId: result.session_id,
    taskId: result.task_id,
    status: result.polar_status ?? result.status,
    nodeId: result.node_id ?? null,
    reward: rewardIn(result),
    nonces: noncesIn(JSON.stringify(result.trajectory)),
    digest: digestOf(result),
    isMade: result.metadata['made_by'] === 'server',
  }
}

/** Returns the nonces in a text. */
function noncesIn(text: string): string[] {
  return [...new Set([...text.matchAll(MARK)].map(([, , nonce = '']) => nonce))]
}

/** Digest that does not depend on the order of keys. */
function digestOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value, sortKeys)).digest('hex').slice(0, 16)
}

function sortKeys(_key: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
}

function rewardIn({ trajectory }: SessionResult): number | null {
  const rewards = trajectory.traces.flatMap(({ reward }) => (reward == null ? [] : [reward]))
  return rewards[0] ?? null
}
