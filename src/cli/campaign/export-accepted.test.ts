import { mkdtemp, readdir, readFile, rm, writeFile, mkdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { chatReader, says, toySession, user } from '../../../test/support/toy-calls.ts'
import { builders } from '../../trajectory/builders/index.ts'
import { exporters } from '../../trajectory/exporters/index.ts'
import { CallFilter } from '../../trajectory/select-calls.ts'
import { exportAccepted, type Accepted, type AcceptedExport } from './export-accepted.ts'
import type { Split } from './repositories.ts'
import { createSecretScrubber } from './secrets.ts'

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-accepted-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

function acceptedOf(id: string, split: Split): Accepted {
  return { session_id: id, task_id: id, repository: split, split, reward: 1, digest: id, turns: 1 }
}

function optionsOf(accepted: readonly Accepted[]): AcceptedExport {
  const config = { kind: 'openai_sft', reasoning: 'field', content: 'text', tools: 'json' } as const
  return {
    dir,
    reader: {
      load: async (id) => ({
        ...toySession([
          { id: 't1', messages: [user(`The key is hunter2-hunter2 of ${id}`)], answer: says('Ok hunter2-hunter2') },
        ]),
        id,
      }),
    },
    build: {
      builder: builders.create({ kind: 'per_request' }, {}),
      filter: CallFilter.parse({}),
      weighting: 'tokens',
      reader: chatReader,
    },
    exporters: [exporters.create(config, {}), exporters.create({ kind: 'parquet', sharePrefixes: false }, {})],
    scrubber: createSecretScrubber(['hunter2-hunter2']),
    accepted,
    scores: new Map(),
  }
}

test('every format has a file for each split, and text formats contain no secret', async () => {
  const files = await exportAccepted(optionsOf([acceptedOf('ses_a', 'train'), acceptedOf('ses_b', 'test')]))
  expect(files.map(({ path, sessions, rows }) => [path, sessions, rows])).toEqual([
    ['data/openai_sft/train.jsonl', 1, 1],
    ['data/openai_sft/test.jsonl', 1, 1],
    ['data/parquet/train', 1, 1],
    ['data/parquet/test', 1, 1],
  ])
  const [row] = (await readFile(join(dir, 'data/openai_sft/train.jsonl'), 'utf8')).split('\n')
  expect(JSON.parse(row!)).toEqual({
    messages: [
      { role: 'user', content: 'The key is [secret] of ses_a' },
      { role: 'assistant', content: 'Ok [secret]', weight: 1 },
    ],
  })
  expect(await readdir(join(dir, 'data/parquet/test'))).toEqual(['part-00000.parquet'])
})

test('a later export replaces all files, also after a crash of an earlier one', async () => {
  await mkdir(join(dir, 'data.partial/openai_sft'), { recursive: true })
  await writeFile(join(dir, 'data.partial/openai_sft/test.jsonl'), 'half')
  await exportAccepted(optionsOf([acceptedOf('ses_c', 'train')]))
  expect((await readdir(join(dir, 'data'))).toSorted()).toEqual(['accepted.jsonl', 'openai_sft', 'parquet'])
  expect(await readdir(join(dir, 'data/openai_sft'))).toEqual(['train.jsonl'])
  expect(JSON.parse(await readFile(join(dir, 'data/accepted.jsonl'), 'utf8'))).toEqual(acceptedOf('ses_c', 'train'))
  expect((await readdir(dir)).filter((name) => name.startsWith('data.'))).toEqual([])
})
