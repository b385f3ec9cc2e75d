import { hostname } from 'node:os'
import * as z from 'zod'
import { Label, NodeId } from '../api/fields.ts'
import { runtimes } from '../node/sandbox/runtimes/index.ts'
import { StageWidths } from '../node/session/stages.ts'
import { SESSION_CALLS, SESSION_LOG_MB } from '../model/session.ts'
import { atMostOne, exactlyOne, HttpUrl, Path, Seconds, secret } from './fields.ts'
import { RuntimesSection } from './runtimes-section.ts'

const Budgets = z.strictObject({
  init_seconds: Seconds.default(900).describe('For making a sandbox ready'),
  evaluate_seconds: Seconds.default(1800).describe('For grading'),
})

const Artifacts = z.strictObject({
  keep: z
    .enum(['all', 'failures', 'none'])
    .default('all')
    .describe('Sessions whose output, logs and evidence are kept'),
  file_mb: z.number().positive().default(16).describe('Most of one file that is kept'),
  total_mb: z.number().positive().default(128).describe('Most that is kept of one session'),
})

const Allow = z.strictObject({
  paths: z
    .array(Path)
    .default([])
    .describe('Folders of this machine that tasks may upload from, mount, or be graded by'),
  hosts: z
    .array(z.string().min(1))
    .default([])
    .describe('Hosts that evaluators may call: `judge.example`, `judge.example:8443`, `*.example`, or `*` for all'),
  env: z.array(z.string().min(1)).default([]).describe('Environment variables that evaluators may read; `*`: all'),
  runtimes: z
    .array(z.enum(runtimes.kinds as [string, ...string[]]))
    .optional()
    .describe('Kinds of sandbox; absent: all but `local`, and that too where it is the usual one'),
})

const CheckoutCredential = z
  .strictObject({
    host: z
      .string()
      .regex(/^(?:[\p{L}\p{N}][\p{L}\p{N}._-]*|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?$/u, 'must be a host, or host:port')
      .describe('The host that it is for: `github.com`, `git.example:8443`'),
    user: z
      .string()
      .regex(/^[\x21-\x7e]+$/, 'must be one word')
      .default('git')
      .describe('User name for https; most hosts accept any with a token'),
    ...secret('token', 'the token or password for https'),
    ssh_key_file: Path.optional().describe('Private key for ssh, without a passphrase'),
    known_hosts_file: Path.optional().describe(
      'Keys of the host, as `ssh-keyscan` writes them; required with `ssh_key_file`',
    ),
  })
  .refine(...exactlyOne('token_file', 'token_env', 'ssh_key_file'))
  .refine((one) => (one.ssh_key_file === undefined) === (one.known_hosts_file === undefined), {
    message: 'needs both of ssh_key_file, known_hosts_file, or neither',
  })
export type CheckoutCredential = z.output<typeof CheckoutCredential>

const Checkouts = z.strictObject({
  credentials: z
    .array(CheckoutCredential)
    .default([])
    .describe('For repositories that tasks check out; git uses no other credentials of the node. For all tasks alike'),
})

const Gateway = z.strictObject({
  heap_mb: z
    .int()
    .min(128)
    .optional()
    .describe('Heap limit of the gateway process; absent: a quarter of the memory, from 512 to 4096'),
  session_body_mb: z
    .int()
    .min(1)
    .default(128)
    .describe('Request bodies that the calls in flight of one session may hold; further calls wait, then get 429'),
  total_body_mb: z
    .int()
    .min(1)
    .optional()
    .describe(
      'The same for all sessions together; further calls with bodies over 4 MB wait, then get 503. Absent: an eighth of the heap',
    ),
  session_log_mb: z
    .int()
    .min(1)
    .default(SESSION_LOG_MB)
    .describe('Call log of one session; its further calls are refused with 403'),
  session_calls: z
    .int()
    .min(1)
    .default(SESSION_CALLS)
    .describe('Calls in flight of one session; further calls get 429'),
})

const Uploads = z.strictObject({
  artifacts: z.enum(['all', 'failures', 'none']).default('all').describe('Of which sessions artifacts are sent'),
  call_log: z.enum(['all', 'failures', 'none']).default('all').describe('Of which sessions recorded calls are sent'),
  at_once: z.int().min(1).max(64).default(8).describe('Sessions that are being delivered at a time'),
})

const Retention = z.strictObject({
  sessions: z.int().min(0).default(200).describe('At most so many sessions; 0: none'),
  total_mb: z.number().min(0).default(2048).describe('At most so much of all of them'),
  hours: z.number().positive().default(72).describe('At most for so long'),
})

/** `polar node`, and the node in `polar up`. */
export const NodeSection = z
  .strictObject({
    id: NodeId.optional().describe('Its name; two nodes must not have the same. Absent: the name of the machine'),
    server: HttpUrl.optional().describe('Where the server is; absent: `server.url`, or the one in the same `data`'),
    ...secret('token', 'a token with the scope `node`; absent: the one in `tokens.json` in `data`'),
    labels: z.array(Label).max(1000).default([]).describe('What it has, besides runtimes and harnesses: `gpu`'),
    widths: StageWidths.extend({
      backlog: StageWidths.shape.backlog
        .unwrap()
        .optional()
        .describe('Ended agents that may wait to be graded before new ones have to wait; absent: twice `postrun`'),
    }).prefault({}),
    budgets: Budgets.prefault({}).describe('For tasks that do not say'),
    gateway: Gateway.prefault({}).describe('The gateway process of the node'),
    runtime: z
      .enum(runtimes.kinds as [string, ...string[]])
      .optional()
      .describe('Runtime of tasks that name none; absent: bubblewrap, and a node without it does not start'),
    runtimes: RuntimesSection.prefault({}).describe('Settings of each kind of sandbox'),
    sandbox_memory_mb: z
      .int()
      .min(0)
      .optional()
      .describe(
        'Memory limit of sandboxes whose task names none, in MB. Absent: 3/4 of the machine divided by the sum of `widths.run` and `widths.postrun`, at least 1024; 0: no limit',
      ),
    artifacts: Artifacts.prefault({}).describe('What is kept of a session for people to look at'),
    modules: z.array(Path).default([]).describe('Builders, evaluators, harnesses and runtimes whose code is trusted'),
    allow: Allow.optional().describe(
      'What tasks may name. Absent: for `polar up` everything, for `polar node` nothing',
    ),
    checkouts: Checkouts.prefault({}).describe('Repositories that tasks check out'),
    harness_dir: Path.optional().describe('Where harnesses are installed; absent: `.polar/harnesses`'),
    uploads: Uploads.prefault({}).describe('What goes to the server besides the result'),
    retention: Retention.prefault({}).describe('What is kept here of sessions that were delivered'),
    min_free_mb: z.number().min(0).default(1024).describe('With less room in `data` it takes nothing new'),
    drain_seconds: z
      .number()
      .min(0)
      .optional()
      .describe('How long a node that was told to end waits for its sessions; absent: as long as they take'),
  })
  .refine(...atMostOne('token_file', 'token_env'))

/** A node without a name is called after its machine. */
export function usualNodeId(): string {
  const name = hostname().replaceAll(/[^A-Za-z0-9_.-]/g, '-')
  return NodeId.safeParse(name).success ? name : 'node'
}
