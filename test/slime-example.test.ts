import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { parse } from 'yaml'
import { SubmitRequest } from '../src/api/routes/submit-request.ts'

const folder = join(import.meta.dirname, '../examples/slime')
const config = parse(readFileSync(join(folder, 'polar.yaml'), 'utf8')) as Record<string, unknown>

/** Values of the placeholders, by the names that NVIDIA's bridge uses. */
const CONTEXT: Readonly<Record<string, unknown>> = {
  rollout_id: 7,
  'sample.group_index': 3,
  'sample.metadata.image': 'swe:42',
  'sample.metadata.instance': { instance_id: 'a__b-1', repo: 'a/b', FAIL_TO_PASS: ['t'], PASS_TO_PASS: [] },
}

/** A value that is one placeholder becomes the value itself; placeholders within a text become text. */
function render(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(render)
  if (typeof value === 'object' && value !== null)
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, render(inner)]))
  if (typeof value !== 'string') return value
  const whole = /^\{([^{}]+)\}$/.exec(value)?.[1]
  if (whole !== undefined) return CONTEXT[whole]
  return value.replaceAll(/\{([^{}]+)\}/g, (_, name: string) => String(CONTEXT[name]))
}

test('examples/slime/polar.yaml, rendered as the bridge does it, is a valid task', () => {
  const task = {
    ...(render(config['polar_task_template']) as object),
    task_id: render(config['polar_task_id_template']),
    instruction: 'Fix it.',
    num_samples: 8,
    callback_url: 'http://127.0.0.1:9100/callback/task_result',
    metadata: { group_id: 3, policy_version: 7, rollout_step: 7 },
  }
  expect(JSON.stringify(task)).not.toContain('undefined')
  expect(SubmitRequest.parse(task)).toMatchObject({ task_id: 'slime-7-3', runtime: { image: 'swe:42' } })
})
