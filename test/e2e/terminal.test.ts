import { spawnSync } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { stringify } from 'yaml'
import { activeIn, HOSTILE } from '../support/hostile-text.ts'
import { Stack } from '../support/stack.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))

let scratch: string
let sessionId: string
let sessions: string

/** Records a session in which harness, task and model send terminal control sequences. */
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-terminal-'))
  sessions = join(scratch, 'sessions')
  const call = { name: 'tool', arguments: { text: HOSTILE } }
  const script = stringify({
    scenarios: { one: [{ text: HOSTILE, tool_calls: [call] }], two: [{ text: `two ${HOSTILE}` }] },
    default: { text: HOSTILE },
  })
  await using stack = await Stack.start({ script, dir: sessions, origin: { engine: { kind: 'tiny' }, note: HOSTILE } })
  sessionId = stack.session.id
  const client = stack.client()
  const user = (content: string) => ({ role: 'user' as const, content })
  const system = (content: string) => ({ role: 'system' as const, content })
  const first = await client.chat.completions.create({ model: HOSTILE, messages: [user(`SCRIPT:one ${HOSTILE}`)] })
  const answer = first.choices[0]!.message
  // Histories that are no literal continuations, for `drift`, and differ only in a time, for `drift --suggest`.
  for (const at of ['2026-01-01T10:00:00.000Z', '2026-01-01T10:00:01.000Z', '2026-01-01T10:00:02.000Z'])
    await client.chat.completions.create({
      model: 'tiny',
      messages: [
        system(`${HOSTILE} Current time: ${at}\n`),
        user(HOSTILE),
        { ...answer, tool_calls: [] },
        user('SCRIPT:two'),
      ],
    } as never)
  await client.chat.completions.create({ model: 'tiny', messages: [user(HOSTILE)], n: -1 }).catch(() => {})
  await stack.gateway.closeSession(sessionId)
}, 60_000)
afterAll(() => rm(scratch, { recursive: true, force: true }))

interface Ran {
  status: number | null
  stdout: string
  stderr: string
}

function polar(...words: string[]): Ran {
  return spawnSync(process.execPath, [main, ...words], { cwd: scratch, encoding: 'utf8' })
}

function expectVisible({ stdout, stderr }: Ran, what: string): void {
  for (const text of [stdout, stderr]) expect(activeIn(text), what).toBeUndefined()
}

describe('output of an agent is printed without active control sequences', { timeout: 120_000 }, () => {
  test.each([
    ['show'],
    ['show', '--full', '--tokens'],
    ['inspect', '--why'],
    ['build'],
    ['drift'],
    ['drift', '--suggest'],
  ])('polar %s %s', (verb, ...flags) => {
    const ran = polar(verb, sessionId, '--from', sessions, ...flags)
    expectVisible(ran, verb)
    expect(ran.stdout + ran.stderr).not.toBe('')
    if (verb === 'show') expect(ran.stdout).toContain('\\u{1b}[31mred')
  })

  test.each([['show', '--tokens'], ['inspect'], ['build'], ['drift']])(
    'polar %s --json prints the exact data',
    (verb, ...flags) => {
      const ran = polar(verb, sessionId, '--from', sessions, '--json', ...flags)
      expectVisible(ran, verb)
      const json = JSON.parse(ran.stdout) as { calls: { choices: { message: { content: { text: string }[] } }[] }[] }
      if (verb === 'show')
        expect(JSON.stringify(json.calls[0]!.choices[0]!.message)).toContain(JSON.stringify(HOSTILE).slice(1, -1))
    },
  )

  test('errors about a task file, an id or an argument', async () => {
    const task = join(scratch, 'task.yaml')
    await writeFile(task, stringify({ task_id: HOSTILE, instruction: 'x', agent: { harness: HOSTILE }, [HOSTILE]: 1 }))
    for (const words of [
      ['run', task],
      ['task', 'submit', task],
      ['show', HOSTILE],
      [HOSTILE],
      ['show', `--${HOSTILE}`],
    ]) {
      const safe = words.map((word) => word.replaceAll('\0', ''))
      const ran = polar(...safe)
      expectVisible(ran, safe[0]!)
      expect(ran.stderr).not.toBe('')
    }
  })

  test('polar run with a failing agent and grader', async () => {
    const textFile = join(scratch, 'said')
    await writeFile(textFile, HOSTILE.replaceAll('\0', ''))
    const command = `cat ${textFile}; cat ${textFile} >&2; exit 3`
    const task = {
      task_id: `hostile ${HOSTILE.replaceAll('\0', '')}`,
      instruction: HOSTILE,
      agent: { harness: 'shell', custom_shell: { command } },
      runtime: { backend: 'local' },
      builder: { strategy: 'prefix_merging' },
      evaluator: { strategy: 'command', config: { command } },
    }
    const file = join(scratch, 'run.yaml')
    await writeFile(file, stringify(task))
    const flags = ['--out', join(scratch, 'runs'), '--refills', '0']
    expectVisible(polar('run', file, ...flags), 'run')
    const json = polar('run', file, ...flags, '--json')
    expectVisible(json, 'run --json')
    expect((JSON.parse(json.stdout.split('\n')[0]!) as { taskId: string }).taskId).toBe(task.task_id)
  })
})
