import * as z from 'zod'
import { Capabilities } from '../upstream.ts'
import type { EngineHttpOptions } from './engine-http.ts'

/** What every engine behind HTTP is configured with. */
export const engineConfigFields = {
  url: z.url({ protocol: /^https?$/ }).describe('Where the engine listens; /v1 at the end is optional'),
  apiKey: z.string().min(1).optional().describe('Sent as a bearer token'),
  model: z.string().min(1).optional().describe('Model to ask for; absent passes on the name the harness uses'),
  idleTimeoutMs: z.int().positive().optional().describe('Longest silence of the engine; default 15 minutes'),
  capabilities: Capabilities.partial().optional().describe('What an earlier probe found, so that none is needed'),
} as const

export interface EngineOptions extends EngineHttpOptions {
  /** The name to ask for; absent passes on the harness's own. */
  model?: string
  /** What is known already, from a probe or from the user. */
  capabilities?: Partial<Capabilities>
}

export function toEngineOptions(config: Omit<EngineOptions, 'baseUrl'> & { url: string }): EngineOptions {
  const { url, ...options } = config
  return { baseUrl: url, ...options }
}
