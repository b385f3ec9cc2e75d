import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createClient } from '../../src/client/client.ts'
import type { CampaignReport } from '../../src/cli/campaign/campaign-report.ts'
import type { Decision } from '../../src/cli/campaign/campaign-journal.ts'
import type { Accepted } from '../../src/cli/campaign/export-accepted.ts'
import { SessionFolder } from '../../src/node/session/session-folder.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { pythonEnvironment } from '../support/python-environment.ts'
import { startUp } from '../support/up-process.ts'

const TASKS = 40
const REPOSITORIES = 8
const main = join(import.meta.dirname, '../../src/cli/main.ts')
const { python, install } = pythonEnvironment('python-export', 'python-export-requirements.txt')

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-campaign-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

/** The agent succeeds with "yes" only, so about two thirds of the attempts are accepted. */
const SCRIPT = 'order: [{ text: yes }, { text: yes }, { text: no }]\nrepeat: cycle\n'

const tasks = Array.from({ length: TASKS }, (_, index) => ({
  task_id: `task-${index}`,
  instruction: 'Answer.',
  agent: {
    harness: 'shell',
    custom_shell: { command: bashAgent(`call "Question ${index}" | grep -q '"content":"yes"'`) },
  },
  evaluator: { strategy: 'session_completed' },
  metadata: { repo: `team/project-${index % REPOSITORIES}` },
}))

interface Campaign {
  out: string
  words: readonly string[]
  env?: Record<string, string>
}

const local: Campaign = {
  out: 'out',
  words: [
    'tasks.jsonl',
    '--attempts=30',
    '--runtime=local',
    '--script=script.yaml',
    '--artifacts=none',
    '--format=openai_sft:content=text,tools=json',
    '--format=parquet',
    '--held-out=0.25',
  ],
}

function start({ out, words, env }: Campaign): ChildProcess {
  return spawn(process.execPath, [main, 'campaign', ...words, '--out', out], {
    cwd: dir,
    env: { ...process.env, NO_COLOR: '1', ...env },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
}

async function finish(campaign: Campaign): Promise<void> {
  const child = start(campaign)
  const [errors, [code]] = await Promise.all([text(child.stderr!), once(child, 'exit') as Promise<[number | null]>])
  expect(code, errors).toBe(0)
}

async function readDecisions({ out }: Campaign): Promise<Decision[]> {
  const lines = (await readFile(join(dir, out, 'campaign.jsonl'), 'utf8').catch(() => '')).split('\n').slice(0, -1)
  return lines.map((line) => JSON.parse(line) as Decision).filter(({ entry }) => entry === 'decision')
}

/** Kills the campaign once the journal has this many decisions. Returns the decisions of that moment. */
async function killAt(campaign: Campaign, count: number): Promise<Decision[]> {
  const child = start(campaign)
  const ended = once(child, 'exit')
  child.stderr!.resume()
  await expect
    .poll(async () => (await readDecisions(campaign)).length, { timeout: 200_000, interval: 20 })
    .toBeGreaterThanOrEqual(count)
  child.kill('SIGKILL')
  expect(await ended).toEqual([null, 'SIGKILL'])
  return readDecisions(campaign)
}

async function readJson<T>(...path: string[]): Promise<T> {
  return JSON.parse(await readFile(join(dir, 'out', ...path), 'utf8')) as T
}

const TITLE =
  'a campaign that is killed twice ends with one accepted trajectory of each task, and datasets loads its files'

// The limit includes the installation of datasets.
test(TITLE, { timeout: 900_000 }, async ({ skip }) => {
  await writeFile(join(dir, 'tasks.jsonl'), tasks.map((task) => `${JSON.stringify(task)}\n`).join(''))
  await writeFile(join(dir, 'script.yaml'), SCRIPT)
  const first = await killAt(local, 8)
  const second = await killAt(local, first.length + 12)
  await finish(local)

  const decisions = await readDecisions(local)
  expect(decisions.slice(0, second.length)).toEqual(second)
  expect(second.slice(0, first.length)).toEqual(first)
  expect(new Set(decisions.map(({ sessionId }) => sessionId)).size).toBe(decisions.length)
  const accepted = decisions.filter(({ verdict }) => verdict === 'accepted')
  expect(accepted.map(({ taskId }) => taskId).toSorted()).toEqual(tasks.map(({ task_id }) => task_id).toSorted())

  const outcomes = await SessionFolder.outcomes(join(dir, 'out/sessions'))
  expect(await readdir(join(dir, 'out/sessions'))).toHaveLength(outcomes.length)
  expect(outcomes.map(({ sessionId }) => sessionId).toSorted()).toEqual(
    decisions.map(({ sessionId }) => sessionId).toSorted(),
  )
  const rewarded = outcomes.filter(({ grade }) => grade?.outcome_reward === 1)
  expect(rewarded.map(({ sessionId }) => sessionId).toSorted()).toEqual(
    accepted.map(({ sessionId }) => sessionId).toSorted(),
  )

  const report = await readJson<CampaignReport>('report.json')
  expect(report).toMatchObject({ stopped: 'complete', accepted: TASKS, tasks_complete: TASKS })
  expect(report.attempts).toBe(decisions.filter(({ verdict }) => verdict !== 'failed').length)
  expect(report.repositories.map(({ accepted: count }) => count)).toEqual(
    Array(REPOSITORIES).fill(TASKS / REPOSITORIES),
  )
  expect(await readFile(join(dir, 'out/report.md'), 'utf8')).toContain('(report.svg)')
  expect(await readFile(join(dir, 'out/report.svg'), 'utf8')).toContain('team/project-7')
  const list = (await readFile(join(dir, 'out/data/accepted.jsonl'), 'utf8')).trim().split('\n')
  const rows = list.map((line) => JSON.parse(line) as Accepted)
  const [train, held] = ['train', 'test'].map((split) => rows.filter((row) => row.split === split))
  expect(train!.filter(({ repository }) => held!.some((row) => row.repository === repository))).toEqual([])
  expect(held).toHaveLength(TASKS / 4)

  const missing = install()
  if (missing !== undefined) return skip(`datasets cannot be installed: ${missing}`)
  const env = { ...process.env, HF_HOME: join(dir, 'huggingface'), HF_HUB_OFFLINE: '1' }
  const run = spawnSync(python, ['-c', LOAD, join(dir, 'out/data')], { encoding: 'utf8', env })
  expect(run.status, run.stderr).toBe(0)
  const questions = (split: Accepted[]): string[] => split.map(({ task_id }) => task_id.replace('task-', 'Question '))
  expect(JSON.parse(run.stdout)).toEqual({
    train: questions(train!).map((question) => [question, 'yes']),
    test: questions(held!).map((question) => [question, 'yes']),
    sessions: { train: train!.map(({ session_id }) => session_id), test: held!.map(({ session_id }) => session_id) },
  })
})

/** Prints the texts of the conversations of each split, and the sessions of the parquet rows. */
const LOAD = `
import json, sys
from datasets import load_dataset

chats = load_dataset(f"{sys.argv[1]}/openai_sft")
tokens = load_dataset(f"{sys.argv[1]}/parquet")
result = {split: [[m["content"] for m in row["messages"]] for row in rows] for split, rows in chats.items()}
result["sessions"] = {split: rows["session_id"][:] for split, rows in tokens.items()}
print(json.dumps(result))
`

test('a campaign on a server, killed once, has one task of the server for each session and exports their call logs', async () => {
  await writeFile(
    join(dir, 'few.jsonl'),
    tasks
      .slice(0, 2)
      .map((task) => `${JSON.stringify(task)}\n`)
      .join(''),
  )
  await writeFile(join(dir, 'script.yaml'), SCRIPT)
  await using up = await startUp(['--script', join(dir, 'script.yaml'), '--runtime', 'local'])
  const campaign: Campaign = {
    out: 'served',
    words: ['few.jsonl', '--server', up.url, '--attempts', '30'],
    env: { POLAR_TOKEN: up.tokens.trainer },
  }
  const first = await killAt(campaign, 1)
  await finish(campaign)
  const decisions = await readDecisions(campaign)
  expect(decisions.slice(0, first.length)).toEqual(first)
  const accepted = decisions.filter(({ verdict }) => verdict === 'accepted')
  expect(accepted.map(({ taskId }) => taskId).toSorted()).toEqual(['task-0', 'task-1'])
  const client = createClient({ baseUrl: up.url, token: up.tokens.trainer })
  const served = (await client.listTasks({ query: { limit: 1000 } })).tasks
  expect(served.map(({ task_id }) => task_id).toSorted()).toEqual(
    decisions.map(({ sessionId }) => sessionId).toSorted(),
  )
  const rows = await Promise.all(
    ['train', 'test'].map((split) => readFile(join(dir, 'served/data/openai_sft', `${split}.jsonl`), 'utf8')),
  )
  expect(rows.join('').match(/"yes"/g)).toHaveLength(2)
})
