import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { stringify } from 'yaml'
import { SessionOutcome } from '../../src/model/session-outcome.ts'
import { SCRIPTED } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'

const main = join(import.meta.dirname, '../../src/cli/main.ts')

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-run-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

function start(...words: string[]): ChildProcessWithoutNullStreams {
  return spawn(process.execPath, [main, ...words], { cwd: dir, env: { ...process.env, NO_COLOR: '1' } })
}

async function polar(...words: string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const child = start(...words)
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'exit') as Promise<[number | null]>,
  ])
  return { code, stdout, stderr }
}

async function write(name: string, ...tasks: object[]): Promise<string> {
  await writeFile(join(dir, name), tasks.map((task) => stringify(task)).join('---\n'))
  return name
}

function shell(command: string): object {
  return { harness: 'shell', custom_shell: { command } }
}

const task = {
  instruction: 'Answer.',
  agent: shell(bashAgent('call "Who are you?" > answer.txt; echo fine')),
  builder: { strategy: 'prefix_merging' },
  evaluator: { strategy: 'command', config: { command: 'grep -q HTTP answer.txt' } },
}

describe('polar run', { timeout: 120_000 }, () => {
  test('each sample of a task becomes a session with a reward that the printed export command reads', async () => {
    const file = await write('good.yaml', { ...task, num_samples: 3 })
    const { code, stdout } = await polar('run', file, '--out', 'good')
    expect(code).toBe(0)
    expect(stdout).toMatch(/good +3\/3 +0 +1\.000/)
    const sessions = await readdir(join(dir, 'good/sessions'))
    expect(sessions).toHaveLength(3)
    const scores = (await readFile(join(dir, 'good/scores.jsonl'), 'utf8')).trim().split('\n')
    expect(scores.map((line) => (JSON.parse(line) as { outcome_reward: number }).outcome_reward)).toEqual([1, 1, 1])
    const exportCommand = /^Train +polar (.*)$/m.exec(stdout)![1]!
    const exported = await polar(...exportCommand.split(' '))
    expect(exported).toMatchObject({ code: 0 })
    const rows = (await readFile(join(dir, 'traces.jsonl'), 'utf8')).trim().split('\n')
    expect(rows.map((row) => (JSON.parse(row) as { reward: unknown }).reward)).toHaveLength(3)
  })

  test('all errors of all tasks are reported before a session starts or the engine is called', async () => {
    const upload = { type: 'upload_file', source: 'none.txt', target: 'none.txt' }
    const one = await write('mistakes.yaml', { ...task, evaluator: { strategy: 'nope' } }, task, {
      ...task,
      agent: { harness: 'nope' },
      runtime: { prepare: [upload] },
      evaluator: { strategy: 'command' },
    })
    const other = await write('module.yaml', { ...task, evaluator: { strategy: './grade.ts' } })
    await writeFile(join(dir, 'grade.ts'), 'export const evaluator = {}')
    const { code, stderr } = await polar('run', one, other, '--out', 'none', '--engine-url', 'http://127.0.0.1:1')
    expect(code).toBe(2)
    for (const problem of [
      'tasks[0].evaluator.strategy: unknown evaluator "nope"',
      'tasks[2].agent.harness: "nope" is none of',
      `tasks[2].runtime.prepare[0].source: ${join(dir, 'none.txt')} does not exist.`,
      'tasks[2].evaluator.config.command: ',
      `evaluator.strategy: Evaluator module ${join(dir, 'grade.ts')} is not on the list of allowed modules`,
    ])
      expect(stderr).toContain(problem)
    expect(stderr).not.toContain('tasks[1]')
    expect(await readdir(dir)).not.toContain('none')
  })

  test('the configured bwrap is used; if it does not work, the run is rejected instead of run without isolation', async () => {
    const cwd = await mkdtemp(join(dir, 'configured-'))
    await writeFile(
      join(cwd, 'polar.yaml'),
      'node: { runtimes: { bubblewrap: { program: /no/such/bwrap } } }\nengine: {}\n',
    )
    const file = join(dir, await write('refused.yaml', task))
    const { code, stderr } = await polar(
      'run',
      file,
      ...SCRIPTED,
      '--out',
      'refused',
      '--config',
      join(cwd, 'polar.yaml'),
    )
    expect(code).toBe(1)
    expect(stderr).toContain('/no/such/bwrap is not installed')
    expect(stderr).toContain('--runtime')
    expect(await readdir(join(dir, 'refused')).catch(() => [])).not.toContain('sessions')
    const local = await polar(
      'run',
      file,
      ...SCRIPTED,
      '--out',
      'local',
      '--config',
      join(cwd, 'polar.yaml'),
      '--runtime',
      'local',
    )
    expect(local.code).toBe(0)
  })

  test('a task with runtime local runs as root only with --runtime local', async () => {
    const file = await write('named.yaml', { ...task, runtime: { backend: 'local' } })
    const { code, stdout } = await polar('run', file, ...SCRIPTED, '--out', 'named')
    if (process.getuid?.() !== 0) return expect(code).toBe(0)
    expect(code).toBe(1)
    expect(stdout).toMatch(/config\.invalid: runtime\.backend: "local" isolates nothing.*--runtime local/)
    expect((await polar('run', file, ...SCRIPTED, '--out', 'named-twice', '--runtime', 'local')).code).toBe(0)
  })

  test('two runs into one folder are two groups, and export uses the last run', async () => {
    const trainCommands: string[] = []
    for (const reward of [1, 0]) {
      const graded = {
        ...task,
        task_id: 'same',
        evaluator: { strategy: 'command', config: { command: reward === 1 ? 'true' : 'false' } },
      }
      const file = await write('twice.yaml', { ...graded, num_samples: 2 })
      const { code, stdout } = await polar('run', file, ...SCRIPTED, '--out', 'twice')
      expect(code).toBe(0)
      trainCommands.push(/^Train +polar (.*)$/m.exec(stdout)![1]!)
    }
    const exported = async (...args: string[]): Promise<unknown[]> => {
      const run = await polar(...args, '--format', 'trl', '--advantages', 'grpo', '--to', 'twice.jsonl')
      expect(run, run.stderr).toMatchObject({ code: 0 })
      const rows = (await readFile(join(dir, 'twice.jsonl'), 'utf8')).trim().split('\n')
      return rows
        .map((row) => JSON.parse(row) as { reward: number; advantage: number })
        .map((row) => [row.reward, row.advantage])
    }
    const [first = '', second = ''] = trainCommands.map((line) =>
      line.replace(/ --format .*? --from/, ' --from').replace(/ --to .*/, ''),
    )
    expect(await exported(...first.split(' '))).toEqual([
      [1, 0],
      [1, 0],
    ])
    expect(await exported(...second.split(' '))).toEqual([
      [0, 0],
      [0, 0],
    ])
    const all = ['export', '--from', 'twice/sessions', '--rewards', 'twice/scores.jsonl']
    expect(await exported(...all)).toEqual([
      [0, 0],
      [0, 0],
    ])
    expect(await exported(...all, '--run', 'all')).toEqual([
      [1, 0],
      [1, 0],
      [0, 0],
      [0, 0],
    ])
    expect((await polar(...all)).stderr).toMatch(/^Run run_\w+; --run all or one of run_/)
    expect((await polar('show', 'last', '--from', 'twice/sessions')).code).toBe(0)
  })

  test('--json prints one outcome per line, and a session that failed because of infrastructure is refilled', async () => {
    const file = await write('broken.yaml', { ...task, agent: shell('exit 9') })
    const { code, stdout } = await polar('run', file, ...SCRIPTED, '--out', 'broken', '--json', '--refills', '2')
    const outcomes = stdout
      .trim()
      .split('\n')
      .map((line) => SessionOutcome.parse(JSON.parse(line)))
    expect(code).toBe(1)
    expect(outcomes.map(({ failure }) => failure?.code)).toEqual(Array(3).fill('harness.no-answer'))
    expect(outcomes.every(({ grade }) => grade === undefined)).toBe(true)
  })

  test('a session with an invalid task is not refilled', async () => {
    const file = await write('wrong.yaml', { ...task, runtime: { kwargs: { volumes: ['nonsense'] } } })
    const { code, stdout } = await polar('run', file, ...SCRIPTED, '--out', 'wrong', '--json')
    expect(code).toBe(1)
    expect(JSON.parse(stdout)).toMatchObject({ failure: { code: 'config.invalid' } })
  })

  test('all schema errors of the task file are reported together, before a session starts', async () => {
    const file = await write('bad.yaml', { ...task, num_sample: 3 }, { ...task, agent: {}, timeout_seconds: -1 })
    const { code, stderr } = await polar('run', file)
    expect(code).toBe(2)
    for (const word of ['num_sample', 'timeout_seconds', 'exactly one of harness']) expect(stderr).toContain(word)
  })

  test('an interrupt cancels the run: captured calls are kept, and no sandbox remains', async () => {
    const agent = shell(bashAgent('call one > a; echo captured; sleep 600'))
    const file = await write('long.yaml', { ...task, agent })
    const child = start('run', file, ...SCRIPTED, '--out', 'long', '--json')
    const done = Promise.all([text(child.stdout), once(child, 'exit') as Promise<[number | null]>])
    const log = join(dir, 'long/sessions')
    await expect
      .poll(
        async () => {
          const [session] = await readdir(log).catch(() => [])
          const calls =
            session === undefined ? '' : await readFile(join(log, session, 'calls.plog'), 'latin1').catch(() => '')
          return calls.length
        },
        { timeout: 60_000 },
      )
      .toBeGreaterThan(1000)
    child.kill('SIGINT')
    const [stdout, [code]] = await done
    expect(code).toBe(130)
    expect(JSON.parse(stdout)).toMatchObject({ status: 'CANCELLED', counts: { calls: 1 } })
    const left = await readdir(join(dir, 'long/sandboxes'), { recursive: true })
    expect(left.filter((path) => /sandboxes\/[^/]*agent-/.test(path))).toEqual([])
  })

  test('the next run recovers a killed run: it repeats the sessions and adds missing lines to scores.jsonl', async () => {
    const agent = shell(bashAgent('call one > answer.txt'))
    const slow = { runtime: { prepare: [{ type: 'exec', command: 'sleep 3' }] } }
    const file = await write('killed.yaml', { ...task, ...slow, agent })
    const child = start('run', file, ...SCRIPTED, '--out', 'killed', '--json')
    await expect
      .poll(
        async () => {
          const [session] = await readdir(join(dir, 'killed/sessions')).catch(() => [])
          return (
            session && (await readFile(join(dir, 'killed/sessions', session, 'journal.jsonl'), 'utf8').catch(() => ''))
          )
        },
        { timeout: 60_000 },
      )
      .toContain('INITIALIZING')
    child.kill('SIGKILL')
    await once(child, 'exit')
    const next = await write('next.yaml', { ...task, agent })
    const { code, stdout } = await polar('run', next, ...SCRIPTED, '--out', 'killed', '--json')
    expect(code).toBe(0)
    const outcomes = stdout
      .trim()
      .split('\n')
      .map((line) => SessionOutcome.parse(JSON.parse(line)))
    const ended = outcomes.map(({ taskId, attempt, status }) => `${taskId} ${attempt} ${status}`)
    expect(new Set(ended)).toEqual(new Set(['killed 2 COMPLETED', 'next 1 COMPLETED']))
    await rm(join(dir, 'killed/scores.jsonl'))
    await polar('run', next, ...SCRIPTED, '--out', 'killed', '--json')
    const scores = (await readFile(join(dir, 'killed/scores.jsonl'), 'utf8')).trim().split('\n')
    expect(scores).toHaveLength(3)
  })

  test('--watch runs again when the file changes', async () => {
    const file = await write('watched.yaml', {
      ...task,
      agent: shell('echo one'),
      evaluator: { strategy: 'session_completed' },
    })
    const child = start('run', file, ...SCRIPTED, '--out', 'watched', '--watch', '--json')
    let stdout = ''
    child.stdout.setEncoding('utf8').on('data', (piece: string) => (stdout += piece))
    let stderr = ''
    child.stderr.setEncoding('utf8').on('data', (piece: string) => (stderr += piece))
    const ran = (): number => stdout.split('\n').filter((line) => line !== '').length
    await expect.poll(() => stderr.includes('Waiting for a change') && ran(), { timeout: 60_000 }).toBe(1)
    await write('watched.yaml', {
      ...task,
      agent: shell('echo two'),
      num_samples: 2,
      evaluator: { strategy: 'session_completed' },
    })
    await expect.poll(ran, { timeout: 60_000 }).toBe(3)
    child.kill('SIGINT')
    const [code] = (await once(child, 'exit')) as [number | null]
    expect(code).toBe(130)
  })
})
