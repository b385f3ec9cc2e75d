import { execFile } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { beforeAll, expect, test } from 'vitest'
import { createClient } from '../../src/client/client.ts'
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { convertModel } from '../engines/convert-models.ts'
import { startUp, type UpProcess } from '../support/up-process.ts'
import { installTrainer, type TrainerEnvironment } from '../support/trainer-environment.ts'

const root = join(import.meta.dirname, '../..')
const run = promisify(execFile)

/** The model of the tiny engine for transformers; a string is the reason why it cannot be made. */
let model: { folder: string } | string
beforeAll(() => {
  model = convertModel('minimind')
}, 3_600_000)

/** Runs a program of a trainer against `polar up`. Returns its standard output. */
async function runTrainer(trainer: TrainerEnvironment, up: UpProcess, args: readonly string[]): Promise<string> {
  const path = ['clients/python/src', 'examples/trl', 'examples/verl'].map((folder) => join(root, folder)).join(':')
  const server = { POLAR_SERVER_URL: up.url, POLAR_TOKEN: up.tokens.trainer, POLAR_EXAMPLES: join(root, 'examples') }
  const env = { ...process.env, PYTHONPATH: path, ...server, CUDA_VISIBLE_DEVICES: '', HF_HUB_OFFLINE: '1' }
  const started = performance.now()
  const { stdout } = await run(trainer.python, args, { cwd: up.dir, env, maxBuffer: 2 ** 28 })
  console.log(`${args[0]}: ${Math.round((performance.now() - started) / 1000)} s\n${stdout}`)
  return stdout
}

interface Step {
  step: number
  sessions: number
  reward: number
  trained_tokens: number
  versions: number[]
  logprob_difference: number
}

test('GRPOTrainer of TRL trains the policy that samples, through sessions of polar up', async ({ skip }) => {
  const trl = installTrainer('trl')
  if (typeof trl === 'string') return skip(`TRL cannot be installed: ${trl}`)
  if (typeof model === 'string') return skip(`the model cannot be converted: ${model}`)
  await using engine = await startEngine({})
  await using up = await startUp(['--engine-url', engine.url])
  const report = join(up.dir, 'steps.jsonl')
  const flags = ['--model', model.folder, '--engine', engine.url, '--steps', '4', '--samples', '4', '--report', report]
  await runTrainer(trl, up, [join(root, 'examples/trl/train.py'), ...flags])
  const steps = (await readFile(report, 'utf8'))
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Step)
  expect(steps.map(({ step }) => step)).toEqual([0, 1, 2, 3])
  for (const { step, sessions, versions, trained_tokens: tokens } of steps) {
    expect(sessions).toBe(8)
    expect(tokens).toBeGreaterThan(sessions)
    // Every token was sampled by the weights of the last step.
    expect(versions).toEqual(step === 0 ? [] : [step])
  }
  // The engine computes with 8-bit activations, the trainer with 32-bit floats.
  for (const { logprob_difference: difference } of steps) expect(difference).toBeLessThan(0.2)
})

test('the agent loop of verl returns the tokens, masks, log probabilities and rewards of sessions', async ({
  skip,
}) => {
  const verl = installTrainer('verl')
  if (typeof verl === 'string') return skip(`verl cannot be installed: ${verl}`)
  if (typeof model === 'string') return skip(`the model cannot be converted: ${model}`)
  await using up = await startUp()
  const stdout = await runTrainer(verl, up, [join(root, 'test/trainers/python/run_verl.py'), model.folder])
  const rows = JSON.parse(stdout.trimEnd().split('\n').at(-1)!) as Record<string, unknown>[]
  expect(rows).toHaveLength(4)
  const client = createClient({ baseUrl: up.url, token: up.tokens.trainer })
  for (const row of rows) {
    const params = { session_id: String(row['session_id']) }
    const { trajectory } = await client.getSessionResult({ params })
    const [trace] = trajectory.traces
    expect(row).toMatchObject({
      prompt_ids: trace!.prompt_ids,
      response_ids: trace!.response_ids,
      mask: trace!.loss_mask,
      logprobs: trace!.response_logprobs!.map((value) => Math.fround(value ?? 0)),
      reward: 1,
    })
  }
})
