import * as z from 'zod'
import { ClusterSection } from './cluster-section.ts'
import { EngineSection } from './engine-section.ts'
import { Path } from './fields.ts'
import { NodeSection } from './node-section.ts'
import { ServerSection } from './server-section.ts'

/** `polar.yaml`: everything an operator may say, for all commands. One file serves all machines of a site. */
export const Config = z.strictObject({
  data: Path.default('.polar/up').describe(
    'Folder of everything that is kept: database, results, tokens, sessions of nodes',
  ),
  log: z
    .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'])
    .default('warn')
    .describe('What is logged, to standard error, as lines of JSON'),
  server: ServerSection.prefault({}).describe('The rollout server: tasks in, results out'),
  node: NodeSection.prefault({}).describe('A machine that runs sessions'),
  engine: EngineSection.prefault({}).describe('What answers the model calls of sessions'),
  cluster: ClusterSection.prefault({}).describe('How nodes are started on many machines'),
})
export type Config = z.output<typeof Config>

/** Ways to say the same. Whoever says one of them in a better place takes back the others. */
export const ALTERNATIVES: readonly (readonly string[])[] = [
  ['server.database', 'server.database_file', 'server.database_env'],
  ['server.callbacks.secret_file', 'server.callbacks.secret_env'],
  ['node.token_file', 'node.token_env'],
  ['engine.key_file', 'engine.key_env'],
  ['engine.url', 'engine.script'],
]
