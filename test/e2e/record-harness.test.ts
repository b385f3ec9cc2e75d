import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { readRequest } from '../../src/compose/read-request.ts'
import { harnesses } from '../../src/node/harness/presets/index.ts'
import { textOf } from '../../src/model/message.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))

let scratch: string
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-record-'))
})
afterEach(() => rm(scratch, { recursive: true, force: true }))

function polar(args: readonly string[], env: Record<string, string> = {}): ReturnType<typeof spawnSync> {
  return spawnSync(process.execPath, [main, ...args], {
    cwd: scratch,
    encoding: 'utf8',
    env: { ...process.env, TMPDIR: scratch, ...env },
  })
}

async function writeScript(text: string): Promise<string> {
  const file = join(scratch, 'script.yaml')
  await writeFile(file, text)
  return file
}

/** Returns the last user message of the only call, as the harness sent it. */
async function recordedPrompt(): Promise<string> {
  const reader = createCallLogReader({ dir: join(scratch, '.polar/sessions') })
  const [id = ''] = await reader.list()
  const { turns } = await reader.load(id)
  const message = turns[0] && readRequest(turns[0])?.messages.findLast(({ role }) => role === 'user')
  return message === undefined ? '' : textOf(message)
}

describe('polar record --harness', () => {
  test('passes a prompt of 150 KB that contains flags and shell syntax unchanged', async () => {
    const prompt = `--help $(id) "quoted" 'and' \\ back\n@file /command\n${'Line with ünïcode ☃.\n'.repeat(7000)}end`
    await writeFile(join(scratch, 'prompt.md'), prompt)
    const script = await writeScript('default: { text: "Read." }\nmodel: { context_tokens: 400000 }\n')
    const run = polar(['record', '--harness', 'pi', '--prompt-file', 'prompt.md', '--script', script])
    expect(run.status, String(run.stderr)).toBe(0)
    expect(run.stdout).toBe('Read.\n')
    expect(await recordedPrompt()).toBe(prompt)
  })

  test('passes arguments after -- to the harness, and reports how the harness ended in the JSON summary', async () => {
    const script = await writeScript('default: { text: "Read." }\n')
    const run = polar(['record', '--harness', 'pi', '--script', script, '--json', 'Who?', '--', '--mode', 'json'])
    expect(run.status, String(run.stderr)).toBe(0)
    expect(JSON.parse(String(run.stdout))).toMatchObject({ harness: 'pi', harness_end: 'finished', exit_code: 0 })
    expect(run.stderr).toContain('"type":"agent_end"')
  })

  test('configures the harness with the context size of the engine', async () => {
    const script = await writeScript('default: { text: "Read." }\nmodel: { context_tokens: 8192 }\n')
    const run = polar(['record', '--harness', 'pi', '--script', script, 'Who?'])
    expect(run.status, String(run.stderr)).toBe(0)
    const reader = createCallLogReader({ dir: join(scratch, '.polar/sessions') })
    const { turns } = await reader.load((await reader.list())[0] ?? '')
    expect(JSON.parse(turns[0]?.request ?? '')).toMatchObject({ max_completion_tokens: 2048 })
  })

  test('runs a custom shell command with the instruction in a file', async () => {
    const script = await writeScript('default: { text: "Heard." }\n')
    const agent = join(scratch, 'agent.yaml')
    const call = `import { readFileSync } from 'node:fs'
const content = readFileSync(process.env.POLAR_INSTRUCTION_FILE, 'utf8')
const body = JSON.stringify({ model: process.env.POLAR_MODEL, messages: [{ role: 'user', content }] })
const headers = { 'content-type': 'application/json', authorization: 'Bearer ' + process.env.OPENAI_API_KEY }
const answer = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST', headers, body })
console.log((await answer.json()).choices[0].message.content)
`
    await writeFile(join(scratch, 'agent.mjs'), call)
    await writeFile(agent, `custom_shell: { command: '"${process.execPath}" agent.mjs' }\n`)
    const run = polar(['record', '--harness', 'shell', '--agent', agent, '--script', script, 'Say "it".'])
    expect(run.status, String(run.stderr)).toBe(0)
    expect(run.stdout).toBe('Heard.\n')
    expect(await recordedPrompt()).toBe('Say "it".')
  })

  test('removes the HOME directory of the harness, also after an interrupt', async () => {
    const script = await writeScript('default: { text: "Late.", first_token_ms: 120000 }\n')
    const child = spawn(process.execPath, [main, 'record', '--harness', 'pi', '--script', script, 'Who?'], {
      cwd: scratch,
      env: { ...process.env, TMPDIR: scratch },
      stdio: 'ignore',
    })
    await untilCalled()
    const [home = ''] = await homes()
    expect(((await stat(join(scratch, home))).mode & 0o777).toString(8)).toBe('700')
    const [code] = await endOf(child, 'SIGINT')
    expect(code).toBe(130)
    expect(await homes()).toEqual([])
  })

  test('names the install command of a missing harness', () => {
    const run = polar(['record', '--harness', 'codex', '--harness-dir', 'none', 'Who?'], { PATH: '/usr/bin:/bin' })
    expect(run.status).toBe(1)
    expect(run.stderr).toMatch(/Codex 0\.\d+\.\d+ is not installed.*polar harness install codex --dir none\n$/)
  })

  test.each([
    [['record'], 'name what to run'],
    [['record', 'Who?'], 'a prompt needs --harness'],
    [['record', '--images', '--', 'true'], '--images needs --harness'],
    [['record', '--harness', 'pi'], 'the prompt is missing'],
    [['record', '--harness', 'pi', '--prompt-file', 'x', 'Who?'], 'not both'],
    [['record', '--harness', 'pi', '--prompt-file', 'missing'], 'Cannot read the prompt missing'],
    [['record', '--harness', 'nobody', 'Who?'], '--harness must be one of codex,'],
    [['record', '--agent', 'x', '--', 'true'], '--agent needs --harness'],
    [['record', '--harness', 'shell', 'Who?'], 'needs a custom_shell'],
    [['harness'], 'name an action: ls, install or check'],
    [['harness', 'install'], 'name the harnesses to install'],
    [['harness', 'install', 'shell'], 'Unknown harness "shell". Harnesses: codex,'],
  ])('rejects %j', (args, message) => {
    const run = polar(args)
    expect(run.status).toBe(2)
    expect(run.stderr).toContain(message)
  })
})

test('polar harness ls lists every harness and its path', () => {
  const run = polar(['harness', 'ls', '--json', '--dir', 'none'])
  expect(run.status).toBe(0)
  const rows = JSON.parse(String(run.stdout)) as { name: string; version: string; path: string | null }[]
  expect(rows.map(({ name }) => name)).toEqual(harnesses.map(({ name }) => name))
  expect(rows.find(({ name }) => name === 'pi')).toMatchObject({
    state: 'in PATH',
    path: expect.stringMatching(/node_modules\/\.bin\/pi$/),
  })
  expect(rows.find(({ name }) => name === 'aider')).toMatchObject({ state: 'not here', path: null, bundle: null })
})

async function homes(): Promise<string[]> {
  return (await readdir(scratch)).filter((name) => name.startsWith('polar-home-'))
}

/** Resolves when the harness has called the model. */
async function untilCalled(): Promise<void> {
  const dir = join(scratch, '.polar/sessions')
  for (let i = 0; i < 300; i++) {
    const [id = ''] = await readdir(dir).catch(() => [])
    const log = await stat(join(dir, id, 'calls.plog')).catch(() => undefined)
    if ((log?.size ?? 0) > 2000) return
    await sleep(100)
  }
  throw new Error('The harness made no call.')
}

async function endOf(child: ChildProcess, signal: NodeJS.Signals): Promise<[number | null]> {
  const ended = once(child, 'exit') as Promise<[number | null]>
  child.kill(signal)
  return ended
}
