import * as z from 'zod'
import { atMostOne, exactlyOne, HttpUrl, Name, Path, Seconds, secret } from './fields.ts'

const NodePattern = z
  .string()
  .regex(/^[A-Za-z0-9*][A-Za-z0-9_.*-]{0,127}$/, 'must be the name of a node, where `*` may stand for any characters')

const Token = z
  .strictObject({
    name: Name.describe('Whose it is: quotas are kept by this name, and logs say it'),
    scopes: z
      .array(z.enum(['trainer', 'node', 'read']))
      .min(1)
      .describe('What it is good for: `trainer` submits and cancels, `node` takes work, `read` looks'),
    nodes: z
      .array(NodePattern)
      .min(1)
      .optional()
      .describe('Names of the nodes it may be used by, `*` for any characters: `gpu-*`. Absent: any; for `node` only'),
    ...secret('token', 'the token'),
  })
  .refine(...exactlyOne('token_file', 'token_env'))
  .refine(({ scopes, nodes }) => nodes === undefined || scopes.includes('node'), {
    path: ['nodes'],
    message: 'needs the scope `node` in `scopes`',
  })

const Tls = z.strictObject({
  cert_file: Path.describe('Certificate and what leads to its authority, PEM'),
  key_file: Path.describe('Its private key, PEM'),
})

const Callbacks = z
  .strictObject({
    allow_hosts: z
      .array(z.string().min(1))
      .default(['loopback'])
      .describe('Whom tasks may have called: `trainer-0`, `10.0.0.7:9000`, `*.lab.internal`, `10.0.0.0/8`, `loopback`'),
    attempts: z.int().min(1).max(1000).default(30).describe('How often one is tried; 30 is about four hours'),
    timeout_seconds: Seconds.default(60).describe('For one try'),
    ...secret('secret', 'the key that calls are signed with (HMAC)'),
  })
  .refine(...atMostOne('secret_file', 'secret_env'))

const Retention = z.strictObject({
  days: z
    .number()
    .min(0.01)
    .max(36_500)
    .optional()
    .describe('Tasks that ended longer ago are deleted, with all their results; absent: none for its age'),
  total_gb: z
    .number()
    .positive()
    .optional()
    .describe(
      'Of results and artifacts of tasks that are over; beyond it the oldest are deleted. Absent: none for its size',
    ),
  at_least_hours: z
    .number()
    .min(0)
    .max(876_000)
    .default(24)
    .describe('A task that ended less long ago is not deleted because of `total_gb`: it may not have been read yet'),
})

const Quota = z.strictObject({
  max_queued_sessions: z.int().min(0).optional().describe('Most that may wait; absent: any number'),
  max_running_sessions: z.int().min(0).optional().describe('Most that nodes may have at a time; absent: any number'),
})

/** `polar server`, and the server in `polar up`. */
export const ServerSection = z
  .strictObject({
    host: z.string().min(1).default('127.0.0.1').describe('Address to listen on; others than loopback need `tokens`'),
    port: z.int().min(0).max(65_535).default(8080).describe('Port to listen on; 0 takes a free one'),
    url: HttpUrl.optional().describe('How others reach it, where that is not host and port: behind a proxy, by a name'),
    database: z
      .string()
      .regex(/^(?:embedded|postgres(?:ql)?:\/\/\S+)$/, 'must be `embedded` or a postgres:// URL')
      .optional()
      .meta({ isSensitive: true })
      .describe('A postgres:// URL: shared by several servers. Absent, or `embedded`: in the data folder, one server'),
    ...secret('database', 'the postgres:// URL, where it has a password'),
    connections: z.int().min(1).max(1000).optional().describe('Most connections to PostgreSQL; absent: 10'),
    files: Path.optional().describe('Results and artifacts; several servers share it. Absent: `files` in `data`'),
    tokens: z
      .array(Token)
      .default([])
      .describe('Who may do what. None, on loopback: one for each scope is made and kept in `tokens.json` in `data`'),
    tls: Tls.optional().describe('Listen with TLS; absent: without'),
    callbacks: Callbacks.prefault({}).describe('Calls to trainers when a task is over'),
    lease_seconds: z
      .number()
      .min(1)
      .max(86_400)
      .default(60)
      .describe('A node that is silent for so long has lost its sessions, and others get them'),
    retention: Retention.prefault({}).describe(
      'Which tasks that are over are deleted, for good; those with a callback still to be made are not. By default none is',
    ),
    quotas: z.record(Name, Quota).default({}).describe('What a token, by name, may have under way'),
    open: z.boolean().default(false).describe('Nobody needs a token; on loopback only'),
  })
  .refine(...atMostOne('database', 'database_file', 'database_env'))
