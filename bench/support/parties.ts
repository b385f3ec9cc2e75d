import { mkdtempDisposable } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { recordAnswers, type Answers } from './answers.ts'
import { Child, cpuMsOf } from './child.ts'
import { competitors, type CompetitorName } from './competitors.ts'
import type { GatewayReady } from './gateway-process.ts'
import type { Lag } from './lag.ts'
import type { LoadJob, LoadResult, LoadShape, Target } from './load.ts'
import type { ServiceReady } from './service.ts'

export type PartyName = 'direct' | 'nginx' | 'byte proxy' | CompetitorName | 'gateway'

/** One path from the callers to the same upstream. */
export interface Party {
  name: PartyName
  targets: (stream: boolean) => Target[]
  pid: number
  /** Highest useful number of callers. */
  maxCallers: number
  takeLag?: () => Promise<Lag>
}

export interface Arena extends AsyncDisposable {
  answers: Answers
  parties: Party[]
  /** Missing parties with the reasons. */
  missing: string[]
  gateway: Child<GatewayReady>
  /** Folder of the gateway's call logs. */
  logDir: string
  /** Runs a job with a party; `cpuMs` is the processor time of the party meanwhile. */
  load(party: Party, job: Omit<LoadJob, 'targets'> & { sessions: number }): Promise<LoadResult & { cpuMs: number }>
}

export async function openArena(options: { sessions: number; parties: readonly PartyName[] }): Promise<Arena> {
  await using stack = new AsyncDisposableStack()
  const { path: dir } = stack.use(await mkdtempDisposable(join(tmpdir(), 'polar-bench-')))
  const answers = await recordAnswers(dir)
  const replay = stack.use(await Child.start<{ url: string }>('replay-upstream.ts', [dir]))
  const logDir = join(dir, 'sessions')
  const gateway = stack.use(
    await Child.start<GatewayReady>('gateway-process.ts', [replay.ready.url, logDir, String(options.sessions)]),
  )
  const callers = stack.use(await Child.start<unknown>('load.ts', []))

  const missing: string[] = []
  const parties: Party[] = []
  for (const name of options.parties) {
    switch (name) {
      case 'direct':
        parties.push(plainParty(name, replay.ready.url, replay.pid))
        break
      case 'nginx': {
        const nginx = stack.use(await Child.start<ServiceReady>('nginx-process.ts', [replay.ready.url]))
        if ('missing' in nginx.ready) missing.push(nginx.ready.missing)
        else parties.push(plainParty(name, nginx.ready.url, nginx.ready.pid, { streamPrefix: '/unbuffered' }))
        break
      }
      case 'byte proxy': {
        const proxy = stack.use(await Child.start<{ url: string }>('byte-proxy.ts', [replay.ready.url]))
        parties.push({ ...plainParty(name, proxy.ready.url, proxy.pid), takeLag: () => proxy.ask({ kind: 'lag' }) })
        break
      }
      case 'Portkey':
      case 'LiteLLM': {
        const { url } = replay.ready
        const competitor = stack.use(await Child.start<ServiceReady>('competitor-process.ts', [name, url]))
        const { callers: maxCallers, headers } = competitors[name]
        const extras = { headers: headers(url), maxCallers }
        if ('missing' in competitor.ready) missing.push(competitor.ready.missing)
        else parties.push(plainParty(name, competitor.ready.url, competitor.ready.pid, extras))
        break
      }
      case 'gateway':
        parties.push({
          name,
          targets: () => gateway.ready.sessions.map(toTarget),
          pid: gateway.pid,
          maxCallers: Infinity,
          takeLag: () => gateway.ask({ kind: 'lag' }),
        })
        break
    }
  }

  const owned = stack.move()
  return {
    answers,
    parties,
    missing,
    gateway,
    logDir,
    async load(party, { request, shape, sessions }) {
      const before = await cpuMsOf(party.pid)
      const targets = party.targets(request.stream).slice(0, sessions)
      const result = await callers.ask<LoadResult>({ targets, request, shape: limit(shape, party) } satisfies LoadJob)
      const after = await cpuMsOf(party.pid)
      return { ...result, cpuMs: before === undefined || after === undefined ? Number.NaN : after - before }
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

function limit(shape: LoadShape, { maxCallers }: Party): LoadShape {
  return shape.kind === 'closed' ? { ...shape, callers: Math.min(shape.callers, maxCallers) } : shape
}

function plainParty(
  name: PartyName,
  origin: string,
  pid: number,
  {
    streamPrefix = '',
    headers = {},
    maxCallers = Infinity,
  }: { streamPrefix?: string; headers?: Record<string, string>; maxCallers?: number } = {},
): Party {
  return {
    name,
    pid,
    maxCallers,
    targets: (stream) => [{ origin, path: `${stream ? streamPrefix : ''}/v1/chat/completions`, key: 'none', headers }],
  }
}

export function toTarget({ baseUrl, key }: GatewayReady['sessions'][number]): Target {
  const { origin, pathname } = new URL(baseUrl)
  return { origin, path: `${pathname}/v1/chat/completions`, key }
}
