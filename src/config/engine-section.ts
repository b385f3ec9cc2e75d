import * as z from 'zod'
import { upstreams } from '../gateway/upstreams/index.ts'
import { SESSION_MEMORY_MB } from '../model/session.ts'
import { atMostOne, Path, secret } from './fields.ts'

/** What answers model calls, for `polar node` and `polar up`. */
export const EngineSection = z
  .strictObject({
    url: z
      .string()
      .regex(/^https?:\/\/[^\s/?#]+\S*(?:\s*,\s*https?:\/\/[^\s/?#]+\S*)*$/, 'must be http or https URLs')
      .optional()
      .meta({ isSensitive: true })
      .describe('A running engine, or replicas of one with commas between them; absent: a tiny one is started'),
    kind: z
      .enum(['auto', ...upstreams.kinds])
      .default('auto')
      .describe('What listens there; auto asks it'),
    module: Path.optional().describe(
      'Module that exports `upstream`, for an engine of another kind; replaces `kind`, and needs `url`',
    ),
    model: z.string().min(1).optional().describe('Model to ask for; absent: the first it serves'),
    ...secret('key', 'its API key'),
    script: Path.optional().describe('YAML of turns for the tiny engine to play'),
    context: z
      .int()
      .min(1024)
      .max(100_000_000)
      .optional()
      .describe('Context size harnesses are told, in tokens; absent: what the engine says'),
    images: z.boolean().default(false).describe('The model reads images'),
    continuation: z
      .enum(['template', 'preserve', 'off'])
      .default('template')
      .describe('Whether prompts go on token by token, and what of reasoning the template drops'),
    session_memory_mb: z
      .int()
      .min(1)
      .max(65_536)
      .default(SESSION_MEMORY_MB)
      .describe('Memory limit of the gateway for the conversations of one session, in MB'),
    quirks: z.array(Path).default([]).describe('Files of rules against bytes that change from call to call'),
  })
  .refine(...atMostOne('key_file', 'key_env'))
  .refine(...atMostOne('url', 'script'))
  .refine(({ module, url }) => module === undefined || url !== undefined, {
    path: ['module'],
    message: 'is used only with a url',
  })
