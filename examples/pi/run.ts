/**
 * Runs the pi CLI, unmodified, with the gateway of `polar record`. pi reads its base URL from a models.json only, so this
 * program writes one into a temporary folder and passes the prompt.
 *
 *   polar record -- node examples/pi/run.ts "What is in this folder?"
 */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const { OPENAI_BASE_URL, OPENAI_API_KEY, POLAR_MODEL } = process.env
if (!OPENAI_BASE_URL || !OPENAI_API_KEY || !POLAR_MODEL) {
  console.error('Start this program with polar record, which sets the address of the model.')
  process.exit(2)
}

const agentDir = mkdtempSync(join(tmpdir(), 'pi-agent-'))
const model = { id: POLAR_MODEL, reasoning: true, input: ['text'], contextWindow: 32_768, maxTokens: 512 }
const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }
const provider = {
  baseUrl: OPENAI_BASE_URL,
  apiKey: OPENAI_API_KEY,
  api: 'openai-completions',
  models: [{ ...model, cost }],
}
writeFileSync(join(agentDir, 'models.json'), JSON.stringify({ providers: { polar: provider } }), { mode: 0o600 })

const { status, error } = spawnSync(
  'pi',
  ['--provider', 'polar', '--model', POLAR_MODEL, '-p', ...process.argv.slice(2)],
  {
    env: { ...process.env, PI_CODING_AGENT_DIR: agentDir, PI_OFFLINE: '1' },
    stdio: ['ignore', 'inherit', 'inherit'],
  },
)
rmSync(agentDir, { recursive: true, force: true })
if (error) console.error(`Cannot start pi: ${error.message}`)
process.exit(status ?? 1)
