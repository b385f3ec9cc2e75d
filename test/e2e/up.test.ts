import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, readFile, realpath, rm, stat, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { stringify } from 'yaml'
import { createClient } from '../../src/client/client.ts'
import { SessionResult } from '../../src/model/session.ts'
import { SCRIPTED } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { copyDatabase } from '../support/database-template.ts'

const root = join(import.meta.dirname, '../..')
const main = join(root, 'src/cli/main.ts')

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-up-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

/** Returns an empty folder, as on a new machine. */
async function freshFolder(name: string): Promise<string> {
  const folder = join(dir, name)
  await mkdir(folder)
  return folder
}

/** A folder with an empty database, which `polar up` and `polar server` open faster than they create one. */
async function preparedFolder(name: string): Promise<string> {
  const folder = await freshFolder(name)
  await copyDatabase(join(folder, '.polar/up/database'))
  return folder
}

function start(cwd: string, ...words: string[]): ChildProcess & { stdout: NodeJS.ReadableStream } {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^POLAR_(?!HARNESS)/.test(name)))
  const child = spawn(process.execPath, [main, ...words], { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

interface Ready {
  event: string
  url: string
  node_id?: string
  tokens_file: string | null
}

/** Starts a command and returns its first line, which it prints when it is ready. */
async function startReady(cwd: string, ...words: string[]): Promise<{ child: ChildProcess; ready: Ready }> {
  const child = start(cwd, ...words, '--json')
  const errors = text(child.stderr!)
  const line = await Promise.race([
    once(createInterface({ input: child.stdout }), 'line') as Promise<[string]>,
    once(child, 'exit').then(async ([code]) => {
      throw new Error(`${words[0]} ended with ${code}: ${await errors}`)
    }),
  ])
  return { child, ready: JSON.parse(line[0]) as Ready }
}

async function polar(
  cwd: string,
  ...words: string[]
): Promise<{ code: number | null; stdout: string; stderr: string; json: () => unknown[] }> {
  const child = start(cwd, ...words)
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr!),
    once(child, 'exit') as Promise<[number | null]>,
  ])
  const json = (): unknown[] =>
    stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as unknown)
  return { code, stdout, stderr, json }
}

async function end(child: ChildProcess, signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
  const exited = once(child, 'exit') as Promise<[number | null]>
  child.kill(signal)
  return (await exited)[0]
}

const LOCAL_TASK = {
  instruction: 'Answer.',
  runtime: { backend: 'local' },
  agent: { harness: 'shell', custom_shell: { command: 'true' } },
  builder: { strategy: 'prefix_merging' },
}

describe('polar up', { timeout: 400_000 }, () => {
  test('on a new machine: submit, wait, show and download the results', async () => {
    const cwd = await freshFolder('fresh')
    // The test of the commands of README.md does the same with the model.
    const { child, ready } = await startReady(cwd, 'up', '--port', '0', ...SCRIPTED)
    expect(ready).toMatchObject({ event: 'ready', url: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/) })
    const tokens = join(cwd, '.polar/up/tokens.json')
    expect(ready.tokens_file).toBe(tokens)
    expect((await stat(tokens)).mode & 0o777).toBe(0o600)

    const submitted = await polar(
      cwd,
      'task',
      'submit',
      join(root, 'examples/tasks/ask.yaml'),
      '--samples',
      '3',
      '--wait',
    )
    expect(submitted).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/ask +completed +shell +3\/3 +0 +1\.000/),
    })

    const again = await polar(cwd, 'task', 'submit', join(root, 'examples/tasks/ask.yaml'), '--samples', '3')
    expect(again).toMatchObject({ code: 0, stdout: expect.stringContaining('ask: already exists') })
    const other = await polar(cwd, 'task', 'submit', join(root, 'examples/tasks/ask.yaml'))
    expect(other).toMatchObject({
      code: 1,
      stdout: expect.stringContaining('ask: rejected: the task_id exists with different contents'),
    })

    // The local runtime is not configured for this node, so as root the node rejects tasks that name it.
    if (process.getuid?.() === 0) {
      await writeFile(join(cwd, 'local.yaml'), stringify({ ...LOCAL_TASK, task_id: 'named-local' }))
      const refused = await polar(cwd, 'task', 'submit', 'local.yaml')
      expect(refused.code).toBe(1)
      expect(refused.stdout + refused.stderr).toContain('sandboxes of kind local')
    }

    const listed = (await polar(cwd, 'task', 'ls', '--status', 'completed', '--json')).json()
    expect(listed).toMatchObject([{ task_id: 'ask', status: 'completed', num_samples: 3, valid_sessions: 3 }])

    const shown = await polar(cwd, 'task', 'show', 'ask')
    expect(shown.stdout).toMatch(/^Task +ask\nStatus +completed\n/)
    const [{ sessions }] = (await polar(cwd, 'task', 'show', 'ask', '--json')).json() as [
      { sessions: { session_id: string; reward: number; node_id: string }[] },
    ]
    expect(sessions.map(({ reward, node_id: node }) => [reward, node])).toEqual(sessions.map(() => [1, ready.node_id]))
    expect(sessions).toHaveLength(3)
    const one = await polar(cwd, 'task', 'show', '--session', sessions[0]!.session_id)
    expect(one.stdout).toMatch(/^Status +COMPLETED$/m)

    expect(await polar(cwd, 'task', 'results', 'ask', '--to', 'home')).toMatchObject({
      code: 0,
      stdout: 'ask: 3 results in home/ask.jsonl\n',
    })
    const lines = (await readFile(join(cwd, 'home/ask.jsonl'), 'utf8')).trim().split('\n')
    const results = lines.map((line) => SessionResult.parse(JSON.parse(line)))
    expect(results.map(({ session_id: id }) => id).sort()).toEqual(sessions.map(({ session_id: id }) => id).sort())
    expect(results.every(({ trajectory }) => trajectory.traces.length > 0)).toBe(true)

    expect(await end(child, 'SIGINT')).toBe(130)
    const gone = await polar(cwd, 'task', 'ls')
    expect(gone).toMatchObject({ code: 3, stderr: expect.stringMatching(/^No server .*polar up.*\n$/) })
  })

  test('sessions that ran when polar up was killed complete after a restart, and a waiting client gets the result', async () => {
    const cwd = await preparedFolder('killed')
    const started = join(cwd, 'started')
    const gate = join(cwd, 'gate')
    // Local sandboxes see the disk: the first attempt waits for a gate file that is created only after the kill.
    const task = {
      task_id: 'long',
      instruction: 'Answer.',
      num_samples: 2,
      runtime: { backend: 'local' },
      agent: {
        harness: 'shell',
        custom_shell: {
          command: bashAgent(
            `call "Who are you?" > answer.txt; touch ${started}; until [ -e ${gate} ]; do sleep 0.1; done`,
          ),
        },
      },
      builder: { strategy: 'prefix_merging' },
      evaluator: { strategy: 'command', config: { command: 'grep -q HTTP answer.txt' } },
    }
    await writeFile(join(cwd, 'long.yaml'), stringify(task))
    const first = await startReady(cwd, 'up', '--port', '0', '--runtime', 'local', ...SCRIPTED)
    expect(await polar(cwd, 'task', 'submit', 'long.yaml')).toMatchObject({ code: 0, stdout: 'long: submitted\n' })
    const waiting = start(cwd, 'task', 'wait', 'long', '--json')
    const output = text(waiting.stdout)
    await once(waiting.stderr!, 'data')
    while ((await stat(started).catch(() => undefined)) === undefined) await new Promise((done) => setTimeout(done, 50))
    await end(first.child, 'SIGKILL')
    await writeFile(gate, '')

    const second = await startReady(cwd, 'up', '--port', '0', '--runtime', 'local', ...SCRIPTED)
    expect(await once(waiting, 'exit')).toEqual([0, null])
    expect([JSON.parse(await output)]).toMatchObject([
      { task_id: 'long', status: 'completed', valid_sessions: 2, mean_reward: 1 },
    ])
    expect(await end(second.child)).toBe(0)
  })

  test('the tiny engine plays the script of --script', async () => {
    const cwd = await preparedFolder('script')
    await writeFile(join(cwd, 'hi.yaml'), 'scenarios:\n  hi:\n    - text: I am a script.\n')
    const task = {
      task_id: 'hi',
      instruction: 'SCRIPT:hi Who are you?',
      agent: { harness: 'shell', custom_shell: { command: bashAgent('call "SCRIPT:hi Who are you?" > answer.txt') } },
      evaluator: { strategy: 'command', config: { command: 'grep -q "I am a script" answer.txt' } },
    }
    await writeFile(join(cwd, 'task.yaml'), stringify(task))
    await startReady(cwd, 'up', '--port', '0', '--script', 'hi.yaml')
    const { code, json } = await polar(cwd, 'task', 'submit', 'task.yaml', '--wait', '--json')
    expect(code).toBe(0)
    expect(json()).toMatchObject([{ task_id: 'hi', status: 'completed', mean_reward: 1 }])
  })

  test.each([
    ['up', '--port', '0'],
    ['node', '--server', 'http://127.0.0.1:9'],
  ])('%s ends after one Ctrl-C also while it waits for an engine that does not answer', async (...words) => {
    const silent = createServer().listen(0, '127.0.0.1')
    onTestFinished(() => void silent.close())
    await once(silent, 'listening')
    const engine = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`
    const child = start(await preparedFolder(`silent-${words[0]}`), ...words, '--engine-url', engine)
    const [socket] = (await once(silent, 'connection')) as [Socket]
    socket.on('error', () => {})
    const startedAt = performance.now()
    expect(await end(child, 'SIGINT')).toBe(130)
    // Without the interrupt the wait would last a minute.
    expect(performance.now() - startedAt).toBeLessThan(10_000)
    socket.destroy()
  })

  test('polar up starts again after an interrupt during the creation of its database', async () => {
    const cwd = await freshFolder('unmade')
    const child = start(cwd, 'up', '--port', '0')
    const database = join(cwd, '.polar/up/database/pglite')
    while ((await readdir(database).catch(() => [])).length === 0) await new Promise((done) => setTimeout(done, 10))
    const exited = once(child, 'exit')
    child.kill('SIGINT')
    const [code, signal] = (await exited) as [number | null, NodeJS.Signals | null]
    expect(signal ?? code).toBe(signal === null ? 130 : 'SIGINT')
    const again = await startReady(cwd, 'up', '--port', '0', ...SCRIPTED)
    expect(await end(again.child)).toBe(0)
  })

  test('a second polar up in the same folder fails and names the process that uses it', async () => {
    const cwd = await preparedFolder('twice')
    const { child } = await startReady(cwd, 'up', '--port', '0', ...SCRIPTED)
    const { code, stderr } = await polar(cwd, 'up', '--port', '0', ...SCRIPTED)
    expect([code, stderr]).toEqual([3, expect.stringContaining(`Process ${child.pid}`)])
  })
})

describe('polar server and polar node', { timeout: 400_000 }, () => {
  test('connect through a shared folder, and a node finishes its sessions after SIGTERM', async () => {
    const cwd = await preparedFolder('apart')
    const server = await startReady(cwd, 'server', '--port', '0')
    const node = await startReady(cwd, 'node', '--id', 'n1', '--label', 'big', '--allow-path', root, ...SCRIPTED)
    expect(node.ready).toMatchObject({ event: 'ready', node_id: 'n1', url: server.ready.url })

    const task = {
      task_id: 'drained',
      instruction: 'Answer.',
      requires: ['big'],
      agent: { harness: 'shell', custom_shell: { command: bashAgent('call "Who are you?"; sleep 2') } },
    }
    await writeFile(join(cwd, 'drained.yaml'), stringify(task))
    await polar(cwd, 'task', 'submit', 'drained.yaml')
    const { read } = JSON.parse(await readFile(server.ready.tokens_file!, 'utf8')) as { read: string }
    const client = createClient({ baseUrl: server.ready.url, token: read })
    const isRunning = async (): Promise<boolean> =>
      (await client.listTaskSessions({ params: { task_id: 'drained' } })).sessions.some(
        ({ status }) => status !== 'REGISTERED',
      )
    while (!(await isRunning())) await new Promise((done) => setTimeout(done, 100))
    expect(await end(node.child)).toBe(0)
    const { code, json } = await polar(cwd, 'task', 'wait', 'drained', '--json')
    expect(code).toBe(0)
    expect(json()).toMatchObject([{ status: 'completed', valid_sessions: 1, refills: 0 }])
    expect(await end(server.child)).toBe(0)
  })

  test('tasks can read only allowed folders of a node', async () => {
    const cwd = await preparedFolder('refused')
    await startReady(cwd, 'server', '--port', '0')
    await startReady(cwd, 'node', ...SCRIPTED)
    const { code } = await polar(
      cwd,
      'task',
      'submit',
      join(root, 'examples/tasks/ask.yaml'),
      '--samples',
      '1',
      '--wait',
    )
    expect(code).toBe(1)
    const shown = await polar(cwd, 'task', 'show', 'ask')
    expect(shown.stdout).toContain('ask.sh is not in a folder that tasks may use on this node')
  })

  test.each([
    [
      ['server', '--host', '0.0.0.0'],
      /^server\.host: 0\.0\.0\.0 can be reached from other machines, so it needs tokens/,
    ],
    [['server', '--host', '0.0.0.0', '--open'], /^server\.open: 0\.0\.0\.0 can be reached from other machines/],
    [['server', '--port', 'x'], /^--port: must be a whole number from 0 to 65535, not "x"\n$/],
    [['server', '--config', 'no.yaml'], /^The file .*no\.yaml of --config does not exist\.\n$/],
    [['node'], /^polar node: name the server with --server URL/],
    [['task', 'submit'], /^polar task: name the task files/],
    [['task', 'fly'], /^polar task: unknown action "fly"/],
  ])('%j is rejected with an error message', async (words, expected) => {
    const cwd = await freshFolder(`refused-${words.join('-').replaceAll(/\W/g, '')}`)
    const { code, stderr } = await polar(cwd, ...words)
    expect([code, stderr]).toEqual([2, expect.stringMatching(expected)])
  })

  test('an invalid config file is rejected with all its errors and their lines, before a process starts', async () => {
    const cwd = await freshFolder('bad')
    await writeFile(join(cwd, 'polar.yaml'), 'server:\n  prot: 1\nnode:\n  widths: { run: many }\n')
    for (const verb of ['up', 'server', 'node']) {
      const { code, stderr } = await polar(cwd, verb)
      expect([code, stderr]).toEqual([
        2,
        'polar.yaml:2: server.prot: unknown key; did you mean "port"?\n' +
          'polar.yaml:4: node.widths.run: must be a whole number of at least 1, not "many"\n',
      ])
    }
  })

  test('errors for an unknown token, an unreachable server and an unknown task name the next step', async () => {
    const cwd = await preparedFolder('stranger')
    const { ready } = await startReady(cwd, 'server', '--port', '0')
    await writeFile(join(cwd, 'wrong.token'), 'this-is-none-of-its-tokens\n')
    const { code, stderr } = await polar(cwd, 'task', 'ls', '--server', ready.url, '--token-file', 'wrong.token')
    expect([code, stderr]).toEqual([
      1,
      expect.stringMatching(/token is not known.*request\.unauthorized.*--token-file/),
    ])
    const nothing = await polar(cwd, 'task', 'ls', '--server', 'http://127.0.0.1:9')
    expect([nothing.code, nothing.stderr]).toEqual([3, expect.stringMatching(/server\.unreachable/)])
    const missing = await polar(cwd, 'task', 'show', 'nobody')
    expect([missing.code, missing.stderr]).toEqual([
      1,
      expect.stringMatching(/Task nobody does not exist.*polar task ls/),
    ])
  })
})
