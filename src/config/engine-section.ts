import * as z from 'zod'
import { upstreams } from '../gateway/upstreams/index.ts'
import { SESSION_MEMORY_MB } from '../model/session.ts'
import { AtLeastOne, atMostOne, Path, secret, Text } from './fields.ts'

/** A large model takes minutes to load. */
export const ENGINE_WAIT_SECONDS = 600

/** The engine of `polar node` and `polar up`. */
export const EngineSection = z
  .strictObject({
    url: z
      .string()
      .regex(/^https?:\/\/[^\s/?#]+\S*(?:\s*,\s*https?:\/\/[^\s/?#]+\S*)*$/, 'must be http or https URLs')
      .optional()
      .meta({ isSensitive: true })
      .describe('URL of the engine, or URLs of its replicas separated by commas; absent: the tiny engine is started'),
    kind: z
      .enum(['auto', ...upstreams.kinds])
      .default('auto')
      .describe('Kind of the engine at `url`; `auto` detects it'),
    module: Path.optional().describe(
      'Module that exports `upstream`, for an engine of another kind; replaces `kind`, and requires `url`',
    ),
    model: Text.optional().describe('Model to request; absent: the first that the engine serves'),
    ...secret('key', 'the API key of the engine'),
    wait_seconds: z
      .int()
      .min(0)
      .max(86_400)
      .default(ENGINE_WAIT_SECONDS)
      .describe('How long the start waits for an engine that does not listen yet, loads its model or is busy'),
    script: Path.optional().describe('YAML file of turns that the tiny engine replays'),
    context: z
      .int()
      .min(1024)
      .max(100_000_000)
      .optional()
      .describe('Context size in tokens that harnesses are configured with; absent: the limit of the engine'),
    images: z.boolean().default(false).describe('The model reads images'),
    continuation: z
      .enum(['template', 'preserve', 'off'])
      .default('template')
      .describe(
        'Continue prompts token by token: drop reasoning as the chat template does (`template`), keep it (`preserve`), or render every prompt anew (`off`)',
      ),
    session_memory_mb: AtLeastOne.max(65_536)
      .default(SESSION_MEMORY_MB)
      .describe('Memory limit of the gateway for the conversations of one session, in MB'),
    quirks: z
      .array(Path)
      .default([])
      .describe('Rule files that normalise bytes of requests that change from call to call'),
  })
  .refine(...atMostOne('key_file', 'key_env'))
  .refine(...atMostOne('url', 'script'))
  .refine(({ module, url }) => module === undefined || url !== undefined, {
    path: ['module'],
    message: 'is used only with a url',
  })
