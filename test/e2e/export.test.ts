import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Trace } from '../../src/model/trajectory.ts'
import { BufferPool, ByteWriter } from '../../src/store/call-log/byte-writer.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { RecordKind, writeRecord } from '../../src/store/call-log/record.ts'
import { pythonEnvironment } from '../support/python-environment.ts'
import { expectedMessages, type WireMessage } from '../support/message-oracle.ts'
import { recordSet } from '../support/recorded-set.ts'
import { readParquet } from '../support/read-parquet.ts'
import { assertRowMessages, type Row, type TextFormat } from '../support/row-messages.ts'
import { Stack } from '../support/stack.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const main = join(root, 'src/cli/main.ts')

let scratch: string
/** About 57 MB of call logs; in memory they take several times as much. */
let large: string
/** The first sessions of `large`. */
let small: string

beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-export-'))
  large = join(scratch, 'large')
  const ids = await recordSet({ dir: large, sessions: 200, turns: 20, addedIds: 1500, sampledIds: 500 })
  small = join(scratch, 'small')
  for (const id of ids.slice(0, 70)) await cp(join(large, id), join(small, id), { recursive: true })
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

function startExport(args: readonly string[]): ChildProcess {
  return spawn(process.execPath, [main, 'export', ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
}

function runExport(args: readonly string[]): { status: number | null; stdout: string; stderr: string } {
  const options = { encoding: 'utf8', maxBuffer: 2 ** 28 } as const
  return spawnSync(process.execPath, [main, 'export', ...args], options)
}

async function bytesIn(path: string): Promise<number> {
  const info = await stat(path).catch(() => undefined)
  if (info === undefined) return 0
  if (info.isFile()) return info.size
  const names = await readdir(path)
  const sizes = await Promise.all(names.map((name) => bytesIn(join(path, name))))
  return sizes.reduce((sum, size) => sum + size, 0)
}

async function digestOf(path: string): Promise<Record<string, string>> {
  const isFile = (await stat(path)).isFile()
  const names = isFile ? [''] : (await readdir(path)).toSorted()
  const digests = names.map(async (name) => {
    const bytes = await readFile(isFile ? path : join(path, name))
    return [name, createHash('sha256').update(bytes).digest('hex')] as const
  })
  return Object.fromEntries(await Promise.all(digests))
}

test.each(['jsonl', 'parquet'])(
  '%s: an export that is killed repeatedly with SIGKILL resumes to the same bytes',
  async (format) => {
    const [whole, target] = [join(scratch, `whole.${format}`), join(scratch, `killed.${format}`)]
    // An export to Parquet resumes after its last complete file, which holds more sessions than `small`.
    const args = ['all', '--from', format === 'parquet' ? large : small, '--format', format]
    expect(runExport([...args, '--to', whole]).status).toBe(0)
    const size = await bytesIn(whole)
    for (const part of [0, 0.2, 0.55, 0.9]) {
      const child = startExport([...args, '--to', target, ...(part === 0 ? [] : ['--resume'])])
      const ended = once(child, 'exit')
      const written = async (): Promise<number> => Math.max(await bytesIn(`${target}.partial`), await bytesIn(target))
      while (child.exitCode === null && (await written()) <= part * size) await sleep(10)
      child.kill('SIGKILL')
      await ended
    }
    const last = runExport([...args, '--to', target, '--resume', '--json'])
    expect(last.status, last.stderr).toBe(0)
    expect(JSON.parse(last.stdout)).toMatchObject({ failed: [] })
    expect((JSON.parse(last.stdout) as { resumed_sessions: number }).resumed_sessions).toBeGreaterThan(20)
    expect(await digestOf(target)).toEqual(await digestOf(whole))
    expect([existsSync(`${target}.partial`), existsSync(`${target}.progress`)]).toEqual([false, false])
    expect(runExport([...args, '--to', target, '--resume'])).toMatchObject({ status: 0, stderr: /complete already/ })
  },
)

test.each(['jsonl', 'parquet', 'slime'])('%s: memory does not grow with the number of sessions', (format) => {
  const script = join(root, 'test/support/export-run.ts')
  const to = join(scratch, `memory.${format}`)
  const run = spawnSync(process.execPath, [script, large, format, to], { encoding: 'utf8' })
  const { code, before, peak } = JSON.parse(run.stdout) as { code: number; before: number; peak: number }
  expect(code, run.stderr).toBe(0)
  expect((peak - before) / 1e6).toBeLessThan(200)
})

test('damaged, newer and empty logs are reported, intact logs are exported, and --salvage reads damaged logs', async () => {
  const dir = join(scratch, 'damaged')
  const ids = await recordSet({ dir, sessions: 6, turns: 4, addedIds: 60, sampledIds: 20 })
  const [corrupt = '', cut = '', newer = '', empty = ''] = ids.map((id) => join(dir, id, 'calls.plog'))
  const middle = await readFile(corrupt)
  middle.fill(0xee, middle.length >> 1, (middle.length >> 1) + 4)
  await writeFile(corrupt, middle)
  await truncate(cut, Math.floor((await stat(cut)).size * 0.6))
  await writeNewer(newer, ids[2]!)
  await writeFile(empty, '')

  const target = join(scratch, 'damaged.jsonl')
  const strict = runExport(['all', '--from', dir, '--to', target, '--json'])
  expect(strict.status).toBe(1)
  const report = JSON.parse(strict.stdout) as { failed: { session: string; code: string }[]; incomplete: string[] }
  const failed = Object.fromEntries(report.failed.map(({ session, code }) => [session, code]))
  expect(failed).toMatchObject({
    [ids[0]!]: 'store.corrupt',
    [ids[2]!]: 'store.newer-schema',
    [ids[3]!]: 'store.corrupt',
  })
  const written = new Set(readLines<Trace>(target).map(({ metadata }) => metadata['session_id']))
  for (const id of ids.filter((name) => !(name in failed))) expect(written).toContain(id)
  expect(written.size + report.failed.length).toBe(6)

  const text = runExport(['all', '--from', dir, '--to', target])
  expect(text.stderr).toMatch(/could not be exported/)
  expect(text.stderr).toMatch(/newer version of Polar/)
  expect(text.stderr).toMatch(/--salvage/)

  const salvaged = runExport(['all', '--from', dir, '--to', target, '--salvage', '--json'])
  const after = JSON.parse(salvaged.stdout) as typeof report
  expect(after.failed.map(({ session }) => session)).not.toContain(ids[0])
  expect(after.incomplete).toContain(ids[0])
})

/** Writes the header of a log with a newer schema version. */
async function writeNewer(path: string, id: string): Promise<void> {
  const writer = new ByteWriter(new BufferPool())
  const header = { id, createdAt: 1, origin: {}, schemaVersion: 99 }
  writeRecord(writer, { kind: RecordKind.open, header }, 0)
  await writeFile(path, writer.bytes)
}

test('an export whose reader closes the pipe exits with status 0', () => {
  const command = `"${process.execPath}" "${main}" export all --from "${large}" | head -c 100 | wc -c; echo "\${PIPESTATUS[0]}"`
  const run = spawnSync('bash', ['-c', command], { encoding: 'utf8' })
  expect(run.stdout.trim().split(/\s+/)).toEqual(['100', '0'])
  expect(run.stderr).toBe('')
})

test('invalid flags and combinations of flags are rejected with a message', async () => {
  const rewards = join(scratch, 'rewards.jsonl')
  await writeFile(rewards, '{"session_id": "a", "outcome_reward": 1}\n{"session_id": "b", "reward": 1}\nnope\n')
  const wrong: [args: string[], message: RegExp][] = [
    [['--format', 'parquet'], /--to DIR/],
    [['--format', 'bogus'], /Unknown format "bogus"/],
    [['--format', join(scratch, 'nothing.ts')], /Exporter module .*nothing\.ts/],
    [['--resume'], /--resume needs --to/],
    [['--advantages', 'grpo'], /--rewards/],
    [['--labels', 'main,bogus'], /--labels takes main, subagent/],
    [['--splice', '--builder', 'per_request'], /--splice is for/],
    [['--rewards', rewards], /line 2: .*reward[^]*line 3: not JSON/],
    [['--builder-module', join(scratch, 'nothing.ts')], /is not there, or cannot be read/],
    [['--to', join(scratch, 'no/such/folder/x.jsonl')], /cannot be written: no such file/],
    [['--to', scratch], /is a folder/],
  ]
  for (const [args, message] of wrong) {
    const run = runExport(['all', '--from', join(scratch, 'none'), ...args])
    expect([run.status, run.stderr]).toEqual([2, expect.stringMatching(message)])
  }
})

test('a custom builder, rewards and advantages are applied to the exported samples', async () => {
  const dir = join(scratch, 'graded')
  const ids = await recordSet({ dir, sessions: 3, turns: 3, addedIds: 9, sampledIds: 4 })
  const module = join(scratch, 'last-call.mjs')
  await writeFile(
    module,
    `export const builder = {
       name: 'last_call',
       plan(graph, mayTrain) {
         const call = graph.nodes.filter(mayTrain).at(-1)
         const parts = [
           { ids: call.response.promptIds, call, isSampled: false, isTrained: false },
           { ids: call.choice.ids, call, isSampled: true, isTrained: true },
         ]
         return { rows: [{ promptParts: 1, parts }], leftOut: new Map() }
       },
     }`,
  )
  const rewards = join(scratch, 'graded.jsonl')
  const scores = ids.slice(0, 2).map((id, i) => ({ session_id: id, outcome_reward: i, group_id: '7' }))
  await writeFile(rewards, scores.map((score) => `${JSON.stringify(score)}\n`).join(''))
  const args = ['all', '--from', dir, '--builder-module', module, '--rewards', rewards, '--advantages', 'rloo']
  const run = runExport([...args, '--format', 'trl'])
  expect(run.status, run.stderr).toBe(0)
  expect(run.stderr).toMatch(/1 session without a reward/)
  const lines = run.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
  expect(lines.map(({ reward, advantage, group_id }) => [reward, advantage, group_id])).toEqual([
    [0, -1, 7],
    [1, 1, 7],
    [null, null, null],
  ])
  expect(lines.map(({ env_mask }) => env_mask)).toEqual([1, 2, 3].map(() => [1, 1, 1, 1]))
})

// --- a real recording, read by other programs -------------------------------------------------------------------------

const SCRIPT = `
scenarios:
  go:
    - { text: "I look.", tool_calls: [{ name: bash, arguments: { command: ls } }] }
    - { text: "There are Ünïcödé files." }
`

const { python, install: installPython } = pythonEnvironment('python-export', 'python-export-requirements.txt')

function readLines<T>(path: string): T[] {
  return readFileSync(path, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as T)
}

async function recordReal(): Promise<string> {
  const dir = join(scratch, 'real')
  await mkdir(dir, { recursive: true })
  await using stack = await Stack.start({ script: SCRIPT, dir })
  const tool = { type: 'function' as const, function: { name: 'bash', parameters: { type: 'object' } } }
  const first = await stack.client().chat.completions.create({
    model: 'go',
    messages: [{ role: 'user', content: 'SCRIPT:go' }],
    tools: [tool],
  })
  const answer = first.choices[0]!.message
  await stack.client().chat.completions.create({
    model: 'go',
    messages: [
      { role: 'user', content: 'SCRIPT:go' },
      answer,
      { role: 'tool', tool_call_id: answer.tool_calls![0]!.id, content: 'a.txt' },
    ],
    tools: [tool],
  })
  return dir
}

const EDITED_SCRIPT = `
scenarios:
  edit:
    - { text: "I look.", tool_calls: [{ name: bash, arguments: { command: ls } }] }
    - { text: "I read it.", tool_calls: [{ name: bash, arguments: { command: cat a.txt } }] }
    - { text: "It says hello." }
    - { text: "You are welcome." }
`

/** Records a harness that shortens its second answer in the history, so that later calls do not continue it exactly. */
async function recordEdited(dir: string): Promise<void> {
  await mkdir(dir, { recursive: true })
  await using stack = await Stack.start({ script: EDITED_SCRIPT, dir })
  const tool = { type: 'function' as const, function: { name: 'bash', parameters: { type: 'object' } } }
  const messages: WireMessage[] = [{ role: 'user', content: 'SCRIPT:edit' }]
  for (const edited of [undefined, 'I read.', undefined, undefined]) {
    const body = { model: 'edit', messages: messages as never, tools: [tool] }
    const { content, tool_calls: calls } = (await stack.client().chat.completions.create(body)).choices[0]!.message
    const toolCalls = (calls ?? []) as NonNullable<WireMessage['tool_calls']>
    messages.push({
      role: 'assistant',
      content: edited ?? content,
      ...(toolCalls.length > 0 && { tool_calls: toolCalls }),
    })
    for (const { id } of toolCalls) messages.push({ role: 'tool', tool_call_id: id, content: `result of ${id}` })
    if (toolCalls.length === 0) messages.push({ role: 'user', content: 'Thanks.' })
  }
}

test.each(['prefix_merging', 'prefix_tree'])(
  '%s: in text formats, rows of a real recording contain all messages of its requests',
  async (builder) => {
    const dir = join(scratch, `edited-${builder}`)
    await recordEdited(dir)
    const [id = ''] = await readdir(dir)
    const { turns } = await createCallLogReader({ dir }).load(id)
    const rewards = join(scratch, `edited-${builder}.rewards`)
    await writeFile(rewards, `${JSON.stringify({ session_id: id, outcome_reward: 1 })}\n`)
    const rowsIn = async (format: TextFormat): Promise<Row[]> => {
      const to = join(scratch, `edited-${builder}.${format}`)
      const run = runExport([
        id,
        '--from',
        dir,
        '--builder',
        builder,
        '--format',
        format,
        '--to',
        to,
        '--rewards',
        rewards,
      ])
      expect(run.status, run.stderr).toBe(0)
      const isParquet = format === 'parquet' || format === 'verl'
      return isParquet ? readParquet(await readFile(join(to, 'part-00000.parquet'))) : readLines<Row>(to)
    }
    const expected = (await rowsIn('jsonl')).map((row) => {
      const { calls } = row['metadata'] as { calls: { turn_id: string; choice: number; trained: boolean }[] }
      return expectedMessages(
        calls.map(({ turn_id, choice, trained }) => {
          const turn = turns.find((candidate) => candidate.id === turn_id)!
          return { turn, choice: turn.response!.choices[choice]!, isTrained: trained }
        }),
      )
    })
    const trained = expected.flat().flatMap(({ calls }) => calls.filter(({ isTrained }) => isTrained))
    expect(trained.map(({ turn }) => turn.id).toSorted()).toEqual(turns.map((turn) => turn.id).toSorted())
    for (const format of ['jsonl', 'parquet', 'openai_sft', 'nemo_gym'] as const) {
      const rows = await rowsIn(format)
      expect(rows).toHaveLength(expected.length)
      for (const [i, row] of rows.entries()) assertRowMessages(format, row, expected[i]!)
    }
  },
)

test('every format of a real recording contains the same samples, also when pyarrow reads it', async ({ skip }) => {
  const dir = await recordReal()
  const [id = ''] = await readdir(dir)
  const rewards = join(scratch, 'real-rewards.jsonl')
  await writeFile(rewards, `${JSON.stringify({ session_id: id, outcome_reward: 0.25 })}\n`)
  const pathOf = (format: string): string => join(scratch, `real.${format}`)
  for (const format of ['jsonl', 'slime', 'trl', 'parquet', 'verl']) {
    const run = runExport(['last', '--from', dir, '--format', format, '--to', pathOf(format), '--rewards', rewards])
    expect(run.status, run.stderr).toBe(0)
  }
  const traces = readLines<Trace>(pathOf('jsonl'))
  expect(traces.length).toBeGreaterThan(0)
  const lines = (format: string): Record<string, unknown>[] => readLines(pathOf(format))
  const ids = traces.map((trace) => [...trace.prompt_ids, ...trace.response_ids])
  expect(lines('slime').map(({ tokens }) => tokens)).toEqual(ids)
  expect(
    lines('trl').map((line) => [...(line['prompt_ids'] as number[]), ...(line['completion_ids'] as number[])]),
  ).toEqual(ids)
  const rows = await readParquet(await readFile(join(pathOf('parquet'), 'part-00000.parquet')))
  expect(rows.map(({ input_ids, reward }) => [input_ids, reward])).toEqual(ids.map((row) => [row, 0.25]))

  const missing = installPython()
  if (missing !== undefined) skip(`pyarrow cannot be installed here: ${missing}`)
  const script = join(root, 'test/support/python_export.py')
  const run = spawnSync(python, [script, pathOf('parquet'), pathOf('verl')], { encoding: 'utf8' })
  expect(run.status, run.stderr).toBe(0)
  const read = JSON.parse(run.stdout) as {
    types: Record<string, string>
    samples: Record<string, unknown>[]
    rollouts: Record<string, unknown>[]
  }
  expect(read.types).toMatchObject({
    input_ids: 'list<element: int32>',
    loss_mask: 'list<element: uint8>',
    logprobs: 'list<element: float>',
    reward: 'double',
  })
  expect(read.samples).toEqual(
    traces.map((trace) => ({
      sample_id: trace.metadata['sample_id'],
      input_ids: [...trace.prompt_ids, ...trace.response_ids],
      loss_mask: [...trace.prompt_ids.map(() => 0), ...trace.loss_mask],
      logprobs: [
        ...trace.prompt_ids.map(() => null),
        // Where the mask is 0, a trace contains the log probability 0 and Parquet contains null.
        ...(trace.response_logprobs ?? []).map((logprob, i) => (trace.loss_mask[i] === 1 ? logprob : null)),
      ],
      reward: 0.25,
      calls: (trace.metadata['calls'] as { turn_id: string }[]).map(({ turn_id }) => turn_id),
      messages: [...trace.prompt_messages, ...trace.response_messages],
    })),
  )
  expect(read.rollouts).toEqual(
    traces.map((trace, i) => ({
      ids: ids[i],
      mask: [...trace.prompt_ids.map(() => 0), ...trace.loss_mask],
      reward: 0.25,
      prompt: (trace.prompt_messages as { role: string; content: string | null }[]).map(({ role, content }) => {
        return { role, content: content ?? '' }
      }),
    })),
  )
})
