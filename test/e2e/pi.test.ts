import { spawnSync } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer, type Tokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { Trace } from '../../src/model/trajectory.ts'
import type { EngineCall } from '../support/stack.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

let scratch: string
let tokenizer: Tokenizer
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-pi-'))
  tokenizer = await loadTokenizer(embeddedModelFolder())
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

interface Shown {
  complete: boolean
  calls: {
    grade: string
    delivery: string
    usage: { promptTokens: number; completionTokens: number }
    request: { messages: { role: string; content: unknown; tool_calls?: { function: { arguments: string } }[] }[] }
    prompt_token_ids: number[]
    choices: {
      token_ids: number[]
      logprobs: number[]
      finish_reason: string
      message: { content: { text: string }[]; reasoning?: string; toolCalls: { name: string; arguments: string }[] }
    }[]
  }[]
}

function polar(args: readonly string[], cwd: string): { stdout: string; stderr: string; status: number | null } {
  return spawnSync(process.execPath, [join(root, 'src/cli/main.ts'), ...args], { cwd, encoding: 'utf8' })
}

/** Runs the real CLI through the gateway. Returns its output, the captured session and the log of the engine. */
async function recordPi(
  name: string,
  prompt: string,
  flags: readonly string[],
): Promise<{ stdout: string; stderr: string; session: Shown; engine: EngineCall[]; cwd: string; out: string }> {
  const cwd = await mkdtemp(join(scratch, `${name}-`))
  const out = join(scratch, `${name}-sessions`)
  const log = join(scratch, `${name}.jsonl`)
  const harness = ['node', join(root, 'examples/pi/run.ts'), prompt]
  const run = polar(['record', '--out', out, '--engine-log', log, ...flags, '--', ...harness], cwd)
  expect(run.status, run.stderr).toBe(0)
  const shown = polar(['show', 'last', '--from', out, '--json', '--tokens'], cwd)
  const lines = (await readFile(log, 'utf8')).split('\n').filter((line) => line !== '')
  return {
    stdout: run.stdout,
    stderr: run.stderr,
    session: JSON.parse(shown.stdout) as Shown,
    engine: lines.map((line) => JSON.parse(line) as EngineCall),
    cwd,
    out,
  }
}

function expectSameAsEngine(session: Shown, engine: readonly EngineCall[]): void {
  expect(session.calls.length).toBe(engine.length)
  for (const [i, call] of session.calls.entries()) {
    expect(call).toMatchObject({ grade: 'exact', delivery: 'delivered' })
    expect(call.prompt_token_ids).toEqual(engine[i]?.prompt_token_ids)
    expect(call.choices[0]?.token_ids).toEqual(engine[i]?.choices[0]?.token_ids)
    expect(call.choices[0]?.logprobs.map(Math.fround)).toEqual(engine[i]?.choices[0]?.logprobs.map(Math.fround))
    expect(call.usage).toMatchObject({
      promptTokens: call.prompt_token_ids.length,
      completionTokens: call.choices[0]?.token_ids.length,
    })
  }
}

describe('the real pi CLI, unmodified, through the gateway', () => {
  test('a tool-using task with scripted turns: pi writes the files, and every recorded token equals the token of the engine', async () => {
    const prompt = 'SCRIPT:hello Write hello.py that greets the world, and run it.'
    const { stdout, stderr, session, engine, cwd, out } = await recordPi('task', prompt, [
      '--script',
      join(root, 'examples/scripts/hello.yaml'),
    ])
    expect(stdout.trim()).toBe('hello.py greets the world, and it runs.')
    expect(await readFile(join(cwd, 'hello.py'), 'utf8')).toBe("print('Hello, world')\n")
    expect(session.complete).toBe(true)
    expect(session.calls.map((call) => call.choices[0]?.finish_reason)).toEqual(['tool-calls', 'tool-calls', 'stop'])
    expectSameAsEngine(session, engine)

    // pi ran the tool call and sent its output back.
    const last = session.calls[2]?.request.messages ?? []
    expect(last.map((message) => message.role)).toEqual(['developer', 'user', 'assistant', 'tool', 'assistant', 'tool'])
    expect(JSON.stringify(last[5]?.content)).toContain('Hello, world')

    // The sampled ids decode to the scripted turn, including the chat template.
    const first = session.calls[0]?.choices[0]
    expect(tokenizer.decode(first?.token_ids ?? [], { skipSpecialTokens: false })).toBe(
      '<think>\nA small program. I write the file first, then I run it.\n</think>\n\nI will write the program.\n' +
        `<tool_call>\n{"name": "write", "arguments": ${first?.message.toolCalls[0]?.arguments}}\n</tool_call><|im_end|>`,
    )
    expect(stderr).toMatch(/3\/3 exact/)

    const exported = polar(['export', 'last', '--from', out, '--builder', 'per_request', '--format', 'jsonl'], cwd)
    const traces = exported.stdout
      .trim()
      .split('\n')
      .map((line) => Trace.parse(JSON.parse(line)))
    expect(traces.map((trace) => trace.response_ids)).toEqual(session.calls.map((call) => call.choices[0]?.token_ids))
    expect(traces.map((trace) => trace.prompt_ids)).toEqual(session.calls.map((call) => call.prompt_token_ids))
    expect(traces.every((trace) => trace.loss_mask.every((bit) => bit === 1))).toBe(true)
  })

  test('a plain question to the tiny model: pi prints the text that the sampled ids decode to', async () => {
    const { stdout, session, engine } = await recordPi('question', 'What can you do? Answer in one sentence.', [])
    expect(session.calls).toHaveLength(1)
    expectSameAsEngine(session, engine)
    const ids = session.calls[0]?.choices[0]?.token_ids ?? []
    expect(stdout.trim()).toBe(tokenizer.decode(ids, { skipSpecialTokens: true }).trim())
  })
})
