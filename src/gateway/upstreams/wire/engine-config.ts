import * as z from 'zod'
import { Capabilities } from '../upstream.ts'
import type { EngineHttpOptions } from './engine-http.ts'

export const engineConfigFields = {
  url: z.url({ protocol: /^https?$/ }).describe('URL of the engine; /v1 at the end is optional'),
  apiKey: z.string().min(1).optional().describe('Sent as a bearer token'),
  model: z.string().min(1).optional().describe('Model name to request; absent: the name that the harness requests'),
  idleTimeoutMs: z.int().positive().optional().describe('Limit of the time without data; default 15 minutes'),
  capabilities: Capabilities.partial().optional().describe('Result of an earlier probe'),
} as const

export interface EngineOptions extends EngineHttpOptions {
  /** Model name to request; absent: the name in the request of the harness. */
  model?: string
  /** Known from an earlier probe or from the user. */
  capabilities?: Partial<Capabilities>
}

export function toEngineOptions(config: Omit<EngineOptions, 'baseUrl'> & { url: string }): EngineOptions {
  const { url, ...options } = config
  return { baseUrl: url, ...options }
}
