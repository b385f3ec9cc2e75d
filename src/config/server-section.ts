import * as z from 'zod'
import { AtLeastOne, atMostOne, exactlyOne, HttpUrl, Name, Path, Positive, secret, Text, Whole } from './fields.ts'

const NodePattern = z
  .string()
  .regex(/^[A-Za-z0-9*][A-Za-z0-9_.*-]{0,127}$/, 'must be a node id; `*` matches any characters')

const Token = z
  .strictObject({
    name: Name.describe('Name of the owner, for quotas and logs'),
    scopes: z
      .array(z.enum(['trainer', 'node', 'read']))
      .min(1)
      .describe('Permissions: `trainer` submits and cancels tasks, `node` leases sessions, `read` only reads'),
    nodes: z
      .array(NodePattern)
      .min(1)
      .optional()
      .describe(
        'Ids of the nodes that may use the token; `*` matches any characters: `gpu-*`. Needs the scope `node`. Absent: any node',
      ),
    ...secret('token', 'the token'),
  })
  .refine(...exactlyOne('token_file', 'token_env'))
  .refine(({ scopes, nodes }) => nodes === undefined || scopes.includes('node'), {
    path: ['nodes'],
    message: 'needs the scope `node` in `scopes`',
  })

const Tls = z.strictObject({
  cert_file: Path.describe('Certificate chain, PEM'),
  key_file: Path.describe('Private key of the certificate, PEM'),
})

const Callbacks = z
  .strictObject({
    allow_hosts: z
      .array(Text)
      .default(['loopback'])
      .describe(
        'Hosts that callback URLs of tasks may name: `trainer-0`, `10.0.0.7:9000`, `*.lab.internal`, `10.0.0.0/8`, `loopback`',
      ),
    attempts: AtLeastOne.max(1000)
      .default(30)
      .describe('Delivery attempts for each callback; 30 attempts span about four hours'),
    timeout_seconds: Positive.default(60).describe('Time limit of one attempt'),
    ...secret('secret', 'the key that signs callbacks (HMAC)'),
  })
  .refine(...atMostOne('secret_file', 'secret_env'))

const Retention = z.strictObject({
  days: z
    .number()
    .min(0.01)
    .max(36_500)
    .optional()
    .describe('Age in days at which finished tasks are deleted with all their results; absent: no age limit'),
  total_gb: Positive.optional().describe(
    'Size limit for results and artifacts of finished tasks; above it the oldest tasks are deleted. Absent: no size limit',
  ),
  at_least_hours: z
    .number()
    .min(0)
    .max(876_000)
    .default(24)
    .describe('Minimum age at which `total_gb` may delete a task, so that its results can be read first'),
})

const Quota = z.strictObject({
  max_queued_sessions: Whole.optional().describe('Limit of queued sessions; absent: no limit'),
  max_running_sessions: Whole.optional().describe('Limit of sessions that nodes hold at a time; absent: no limit'),
})

/** `polar server`, and the server in `polar up`. */
export const ServerSection = z
  .strictObject({
    host: Text.default('127.0.0.1').describe('Address to listen on; an address other than loopback needs `tokens`'),
    port: Whole.max(65_535).default(8080).describe('Port to listen on; 0 chooses a free port'),
    url: HttpUrl.optional().describe('URL for clients where it differs from host and port, such as behind a proxy'),
    database: z
      .string()
      .regex(/^(?:embedded|postgres(?:ql)?:\/\/\S+)$/, 'must be `embedded` or a postgres:// URL')
      .optional()
      .meta({ isSensitive: true })
      .describe(
        'A postgres:// URL, which several servers may share. Absent or `embedded`: a database in `data`, for one server',
      ),
    ...secret('database', 'the postgres:// URL if it contains a password'),
    connections: AtLeastOne.max(1000).optional().describe('Limit of connections to PostgreSQL; absent: 10'),
    files: Path.optional().describe(
      'Folder of results and artifacts, shared by all servers. Absent: `files` in `data`',
    ),
    tokens: z
      .array(Token)
      .default([])
      .describe('Access tokens. Empty, on loopback: a token for each scope is created in `tokens.json` in `data`'),
    tls: Tls.optional().describe('TLS certificate; absent: plain HTTP'),
    callbacks: Callbacks.prefault({}).describe('Requests to trainers when a task has finished'),
    lease_seconds: z
      .number()
      .min(1)
      .max(86_400)
      .default(60)
      .describe('Lease duration; sessions of a node that does not renew its leases for this long go to other nodes'),
    retention: Retention.prefault({}).describe(
      'When finished tasks are deleted permanently; tasks with an undelivered callback are kept. By default no task is deleted',
    ),
    quotas: z.record(Name, Quota).default({}).describe('Session limits by the name of the token'),
    open: z.boolean().default(false).describe('Accept requests without a token; only on loopback'),
  })
  .refine(...atMostOne('database', 'database_file', 'database_env'))
