import * as z from 'zod'
import { plugs } from '../../lib/plug.ts'
import { EngineHttp, type EngineHttpOptions } from './wire/engine-http.ts'
import { llamacpp } from './llamacpp.ts'
import { createCustomUpstream, type UpstreamPlug } from './load-upstream.ts'
import { openai } from './openai.ts'
import { createReplicas } from './replicas.ts'
import { sglang } from './sglang.ts'
import type { Upstream } from './upstream.ts'
import { vllm } from './vllm.ts'

export const upstreams = plugs([vllm, sglang, llamacpp, openai])

export type UpstreamConfig = z.infer<typeof upstreams.config>
export type UpstreamKind = UpstreamConfig['kind']

export interface UpstreamDeps {
  /** Monotonic milliseconds. */
  now: () => number
  /** The kind of a user's module; absent: the built-in kinds. */
  plug?: UpstreamPlug
}

/** Creates the upstream of one engine, or of several engines of one kind that serve the same model. */
export function createUpstream(
  configs: UpstreamConfig | readonly [UpstreamConfig, ...UpstreamConfig[]],
  { now, plug }: UpstreamDeps,
): Upstream {
  const [first, ...others] = toList(configs).map((config) =>
    plug === undefined ? upstreams.create(config, undefined) : createCustomUpstream(plug, config),
  )
  if (others.length === 0) return first!
  return createReplicas({ replicas: [first!, ...others], now })
}

function toList(configs: UpstreamConfig | readonly UpstreamConfig[]): readonly UpstreamConfig[] {
  return 'kind' in configs ? [configs] : configs
}

/** Detects the kind of an engine. Rejects when the engine does not answer. */
export async function detectKind(
  options: EngineHttpOptions,
  signal: AbortSignal,
): Promise<{ kind: UpstreamKind; evidence: string }> {
  await using http = new EngineHttp(options)
  const cards = await http.models(signal)
  const owner = cards.map(({ owned_by }) => owned_by).find((name) => name != null)
  const owned = upstreams.kinds.find((kind) => kind !== 'openai' && kind === owner)
  if (owned !== undefined) return { kind: owned as UpstreamKind, evidence: `its models are owned by "${owner}"` }
  for (const { kind, path, schema } of OWN_PATHS) {
    const found = await http.queryOptional(path, schema, { signal }).catch(() => undefined)
    if (found !== undefined) return { kind, evidence: `it answers ${path}` }
  }
  return { kind: 'openai', evidence: 'it has the Chat Completions API and no endpoint of a known engine' }
}

/** Endpoints of a single kind of engine, for engines behind a proxy that lists models itself. */
const OWN_PATHS: readonly { kind: UpstreamKind; path: string; schema: z.ZodType }[] = [
  { kind: 'llamacpp', path: '/props', schema: z.looseObject({ build_info: z.string() }) },
  { kind: 'sglang', path: '/server_info', schema: z.looseObject({ version: z.string() }) },
  { kind: 'sglang', path: '/get_server_info', schema: z.looseObject({ version: z.string() }) },
  { kind: 'vllm', path: '/version', schema: z.looseObject({ version: z.string() }) },
]
