import { hostname } from 'node:os'
import * as z from 'zod'
import { Label, NodeId } from '../api/fields.ts'
import { runtimes } from '../node/sandbox/runtimes/index.ts'
import { StageWidths } from '../node/session/stages.ts'
import { SESSION_CALLS, SESSION_LOG_MB } from '../model/session.ts'
import { AtLeastOne, atMostOne, exactlyOne, HttpUrl, Path, Positive, secret, Sessions, Text, Whole } from './fields.ts'
import { RuntimesSection } from './runtimes-section.ts'

const Budgets = z.strictObject({
  init_seconds: Positive.default(900).describe('Time limit for preparing a sandbox'),
  evaluate_seconds: Positive.default(1800).describe('Time limit for grading'),
})

const Artifacts = z.strictObject({
  keep: Sessions.default('all').describe('Sessions whose output, logs and grading evidence are kept'),
  file_mb: Positive.default(16).describe('Size limit of one kept file'),
  total_mb: Positive.default(128).describe('Size limit of all kept files of one session'),
})

const Allow = z.strictObject({
  paths: z
    .array(Path)
    .default([])
    .describe('Folders of this machine that tasks may upload from, mount, or load grading files from'),
  hosts: z
    .array(Text)
    .default([])
    .describe('Hosts that evaluators may call: `judge.example`, `judge.example:8443`, `*.example`, or `*` for all'),
  env: z.array(Text).default([]).describe('Environment variables that evaluators may read; `*`: all variables'),
  runtimes: z
    .array(z.enum(runtimes.kinds as [string, ...string[]]))
    .optional()
    .describe('Runtimes that tasks may name; absent: all except `local`, unless `local` is the default runtime'),
})

const CheckoutCredential = z
  .strictObject({
    host: z
      .string()
      .regex(/^(?:[\p{L}\p{N}][\p{L}\p{N}._-]*|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?$/u, 'must be a host, or host:port')
      .describe('Host of the repositories: `github.com`, `git.example:8443`'),
    user: z
      .string()
      .regex(/^[\x21-\x7e]+$/, 'must be one word')
      .default('git')
      .describe('User name for https; most hosts accept any name with a token'),
    ...secret('token', 'the token or password for https'),
    ssh_key_file: Path.optional().describe('Private key for ssh, without a passphrase'),
    known_hosts_file: Path.optional().describe(
      'Keys of the host, as `ssh-keyscan` writes them; required with `ssh_key_file`',
    ),
  })
  .refine(...exactlyOne('token_file', 'token_env', 'ssh_key_file'))
  .refine((login) => (login.ssh_key_file === undefined) === (login.known_hosts_file === undefined), {
    message: 'needs both of ssh_key_file, known_hosts_file, or neither',
  })
export type CheckoutCredential = z.output<typeof CheckoutCredential>

const Checkouts = z.strictObject({
  credentials: z
    .array(CheckoutCredential)
    .default([])
    .describe('Credentials for the repositories of all tasks; git uses no other credentials of the node'),
})

const Gateway = z.strictObject({
  heap_mb: z
    .int()
    .min(128)
    .optional()
    .describe('Heap limit of the gateway process in MB; absent: a quarter of the memory, from 512 to 4096'),
  session_body_mb: AtLeastOne.default(128).describe(
    'Limit for the request bodies of all calls of one session in flight; further calls wait, then get 429',
  ),
  total_body_mb: AtLeastOne.optional().describe(
    'The same limit for all sessions together; further calls with bodies over 4 MB wait, then get 503. Absent: an eighth of the heap',
  ),
  session_log_mb: AtLeastOne.default(SESSION_LOG_MB).describe(
    'Size limit of the call log of one session; further calls get 403',
  ),
  session_calls: AtLeastOne.default(SESSION_CALLS).describe(
    'Limit of calls of one session in flight; further calls get 429',
  ),
})

const Uploads = z.strictObject({
  artifacts: Sessions.default('all').describe('Sessions whose artifacts are sent'),
  call_log: Sessions.default('all').describe('Sessions whose call logs are sent'),
  at_once: AtLeastOne.max(64).default(8).describe('Sessions delivered at a time'),
})

const Retention = z.strictObject({
  sessions: Whole.default(200).describe('Limit of kept sessions; 0: none'),
  total_mb: z.number().min(0).default(2048).describe('Size limit of all kept sessions'),
  hours: Positive.default(72).describe('Age limit of kept sessions'),
})

/** `polar node`, and the node in `polar up`. */
export const NodeSection = z
  .strictObject({
    id: NodeId.optional().describe('Unique id of the node. Absent: the host name'),
    server: HttpUrl.optional().describe('URL of the server; absent: `server.url`, or the server with the same `data`'),
    ...secret('token', 'a token with the scope `node`; absent: the token in `tokens.json` in `data`'),
    labels: z
      .array(Label)
      .max(1000)
      .default([])
      .describe('Labels that tasks can require, besides runtimes and harnesses: `gpu`'),
    widths: StageWidths.extend({
      backlog: StageWidths.shape.backlog
        .unwrap()
        .optional()
        .describe('Sessions that may wait for grading before new agents are held back; absent: twice `postrun`'),
    }).prefault({}),
    budgets: Budgets.prefault({}).describe('Time limits of tasks that set none'),
    gateway: Gateway.prefault({}).describe('The gateway process of the node'),
    runtime: z
      .enum(runtimes.kinds as [string, ...string[]])
      .optional()
      .describe('Runtime of tasks that name none; absent: bubblewrap, without which the node does not start'),
    runtimes: RuntimesSection.prefault({}).describe('Settings of each runtime'),
    sandbox_memory_mb: Whole.optional().describe(
      'Memory limit in MB of sandboxes whose task sets none. Absent: 3/4 of the memory divided by the sum of `widths.run` and `widths.postrun`, at least 1024; 0: no limit',
    ),
    artifacts: Artifacts.prefault({}).describe('Files of a session that are kept for inspection'),
    modules: z
      .array(Path)
      .default([])
      .describe('Modules of builders, evaluators, harnesses and runtimes that tasks may load'),
    allow: Allow.optional().describe(
      'Resources of this machine that tasks may use. Absent: all with `polar up`, none with `polar node`',
    ),
    checkouts: Checkouts.prefault({}).describe('Repositories that tasks check out'),
    harness_dir: Path.optional().describe('Folder of installed harnesses; absent: `.polar/harnesses`'),
    uploads: Uploads.prefault({}).describe('Files sent to the server besides the result'),
    retention: Retention.prefault({}).describe('Delivered sessions that the node keeps'),
    min_free_mb: z
      .number()
      .min(0)
      .default(1024)
      .describe('Free disk space in `data` below which the node leases no sessions, in MB'),
    drain_seconds: z
      .number()
      .min(0)
      .optional()
      .describe('How long a draining node waits for its sessions; absent: until they end'),
  })
  .refine(...atMostOne('token_file', 'token_env'))

/** The default node id: the host name. */
export function defaultNodeId(): string {
  const name = hostname().replaceAll(/[^A-Za-z0-9_.-]/g, '-')
  return NodeId.safeParse(name).success ? name : 'node'
}
