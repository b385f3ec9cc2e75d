import * as z from 'zod'
import { ClusterSection } from './cluster-section.ts'
import { EngineSection } from './engine-section.ts'
import { Path } from './fields.ts'
import { NodeSection } from './node-section.ts'
import { ServerSection } from './server-section.ts'

/** Schema of `polar.yaml`: the settings of all commands. One file can serve all machines of a site. */
export const Config = z.strictObject({
  data: Path.default('.polar/up').describe('Data folder: database, results, tokens, sessions of nodes'),
  log: z
    .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'])
    .default('warn')
    .describe('Level of the log, which goes to standard error as JSON lines'),
  server: ServerSection.prefault({}).describe('The rollout server'),
  node: NodeSection.prefault({}).describe('A machine that runs sessions'),
  engine: EngineSection.prefault({}).describe('The inference engine that answers the model calls of sessions'),
  cluster: ClusterSection.prefault({}).describe('Nodes on many machines'),
})
export type Config = z.output<typeof Config>

/** Keys that exclude each other. A source of higher precedence that sets one key of a group unsets the others. */
export const ALTERNATIVES: readonly (readonly string[])[] = [
  ['server.database', 'server.database_file', 'server.database_env'],
  ['server.callbacks.secret_file', 'server.callbacks.secret_env'],
  ['node.token_file', 'node.token_env'],
  ['engine.key_file', 'engine.key_env'],
  ['engine.url', 'engine.script'],
]
