import type { Policy } from '../../api/routes/policy-routes.ts'
import { PauseMode } from '../../model/policy.ts'
import { defineCommand, EXIT, option, parseNumber, toggle, usageError, type ExitCode } from '../command.ts'
import { TRAINER_FLAGS } from '../input/config-flags.ts'
import { explainFailure, findServer } from '../input/find-server.ts'
import { print, printError, printJson } from '../views/print.ts'
import { formatTable } from '../views/table.ts'

const MAX_VERSION = 2_147_483_647

export const command = defineCommand({
  name: 'policy',
  description: 'Show or change the weight version and the pause of all gateways of a server.',
  words: { name: 'ACTION', description: 'show (default), pause, set N or resume' },
  flags: {
    ...TRAINER_FLAGS,
    mode: option('MODE', 'pause: drain waits for calls in flight, hold lets them continue in the engine', {
      default: 'drain',
      choices: PauseMode.options,
    }),
    resume: toggle('set: also end the pause'),
    timeout: option('SECONDS', 'How long to wait until all nodes have confirmed', { default: '120' }),
    json: toggle('Print JSON'),
  },
  examples: ['polar policy', 'polar policy pause', 'polar policy set 8 --resume'],
  async run({ flags, words: [action = 'show', ...words] }): Promise<ExitCode> {
    const [version] = words
    if (words.length > (action === 'set' ? 1 : 0)) throw usageError('policy', `unexpected "${words.at(-1)}"`)
    const seconds = { timeout_seconds: parseNumber('policy', 'timeout', flags.timeout, { min: 0, max: 240 }) }
    const change = async (): Promise<Policy & { warnings?: string[] }> => {
      const { client } = await findServer(flags)
      switch (action) {
        case 'show':
          return client.getPolicy()
        case 'pause':
          return client.pausePolicy({ body: { mode: PauseMode.parse(flags.mode), ...seconds } })
        case 'set': {
          const body = { version: parseVersion(version), resume: flags.resume, ...seconds }
          return client.putPolicy({ body })
        }
        case 'resume':
          return client.resumePolicy({ query: seconds })
        default:
          throw usageError('policy', `unknown action "${action}"; name show, pause, set N or resume`)
      }
    }
    const answer = await change().catch((error: unknown) => {
      throw explainFailure(error)
    })
    for (const warning of answer.warnings ?? []) printError(`${warning}\n`)
    if (flags.json) printJson(answer)
    else print(renderPolicy(answer))
    return EXIT.done
  },
})

function parseVersion(text: string | undefined): number {
  if (text !== undefined && /^\d+$/.test(text) && Number(text) <= MAX_VERSION) return Number(text)
  throw usageError('policy', 'name the version, a whole number: polar policy set 8')
}

function renderPolicy({ version, paused, mode, nodes }: Policy): string {
  const state = `version ${version}, ${paused ? `paused (${mode})` : 'running'}\n`
  if (nodes.length === 0) return `${state}no node has joined\n`
  const rows = nodes.map((node) => [
    node.node_id,
    node.lost ? 'lost' : node.confirmed ? 'confirmed' : 'waiting',
    String(node.version ?? ''),
    String(node.in_flight),
  ])
  return `${state}\n${formatTable([['node', 'state', 'version', 'calls in flight'], ...rows])}`
}
