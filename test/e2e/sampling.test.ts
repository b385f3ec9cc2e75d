import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { Stack } from '../support/stack.ts'

const POLAR = ['src/cli/main.ts']
const script = 'default: { text: hello }'
const messages = [{ role: 'user' as const, content: 'hi' }]

async function polar(...args: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(process.execPath, [...POLAR, ...args])
  return stdout
}

test('sampling settings of the task are in the record, in show --json and in prime_rl rows', async () => {
  await using stack = await Stack.start({ script })
  const sampling = { temperature: 0.5, topP: 0.9, seed: 7 }
  const { id, baseUrl, key } = await stack.gateway.openSession({ sampling })
  const client = stack.client({ baseURL: `${baseUrl}/v1`, apiKey: key })
  await client.chat.completions.create({ model: 'tiny', messages, temperature: 1 })
  await stack.gateway.closeSession(id)
  const { turns } = await createCallLogReader({ dir: stack.dir }).load(id)
  expect(turns).toMatchObject([
    {
      sampling: { asked: { temperature: 1 }, sent: sampling },
      forced: { temperature: 0.5, top_p: 0.9, seed: 7 },
      response: { logprobMode: 'raw' },
    },
  ])
  const shown = JSON.parse(await polar('show', id, '--from', stack.dir, '--json')) as { calls: unknown[] }
  expect(shown.calls).toMatchObject([
    {
      logprobs_of: 'raw',
      sampling: {
        asked: { temperature: 1 },
        sent: { temperature: 0.5, top_p: 0.9, seed: 7 },
        in_force: { temperature: 0.5, top_p: 0.9, top_k: 0, min_p: 0, seed: 7 },
        assumed: ['top_k', 'min_p'],
        distribution_cut: true,
      },
    },
  ])
  const rows = await polar('export', id, '--from', stack.dir, '--format', 'prime_rl')
  const { mask, temperatures } = JSON.parse(rows) as { mask: boolean[]; temperatures: number[] }
  expect(temperatures).toEqual(mask.map((isTrained) => (isTrained ? 0.5 : 1)))
})

test('a call without temperature is exported with the default of the engine, marked as assumed', async () => {
  await using stack = await Stack.start({ script })
  await stack.client().chat.completions.create({ model: 'tiny', messages })
  const { turns } = await stack.recorded()
  expect(turns[0]?.sampling).toMatchObject({ sent: {}, defaults: { temperature: 1 } })
  expect(turns[0]?.sampling?.assumed).toContain('temperature')
  const rows = await polar('export', stack.session.id, '--from', stack.dir, '--format', 'prime_rl')
  const { mask, temperatures } = JSON.parse(rows) as { mask: boolean[]; temperatures: number[] }
  expect(temperatures).toEqual(mask.map(() => 1))
})
