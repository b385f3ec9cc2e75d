import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import { loadHarborTask, loadHarborTasks, type HarborOptions } from './harbor-task.ts'

let root: string
let count = 0
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'polar-harbor-'))
})
afterAll(() => rm(root, { recursive: true, force: true }))

const agent = { harness: 'codex' }
const onMachine: HarborOptions = { agent, runtime: { kind: 'bubblewrap', capabilities: { images: 'optional' } } }
const onImages: HarborOptions = { agent, runtime: { kind: 'docker', capabilities: { images: 'required' } } }

async function makeTask(files: Readonly<Record<string, string | undefined>>): Promise<string> {
  const dir = join(root, `task-${(count += 1)}`)
  const all = {
    'task.toml': '',
    'instruction.md': 'Do it.\n',
    'tests/test.sh': 'echo 1 > /logs/verifier/reward.txt\n',
    'environment/Dockerfile': 'FROM debian\nWORKDIR /app\n',
    ...files,
  }
  for (const [path, text] of Object.entries(all)) {
    if (text === undefined) continue
    await mkdir(dirname(join(dir, path)), { recursive: true })
    await writeFile(join(dir, path), text)
  }
  return dir
}

async function problemsOf(loading: Promise<unknown>): Promise<string[]> {
  const error = await loading.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(RolloutError)
  expect(error).toMatchObject({ code: 'config.invalid' })
  return (error as RolloutError).message.split('\n').map((line) => line.replace(/^\S+: /, ''))
}

test('loadHarborTask() converts all files of the folder to a task', async () => {
  const dir = await makeTask({
    'task.toml': `
version = "1.0"
artifacts = ["out.txt", "/data/model"]
[task]
name = "org/demo"
[metadata]
difficulty = "hard"
made = 2024-01-02T03:04:05Z
[metadata.polar.evaluator]
exclude = ["conftest.py"]
[agent]
timeout_sec = 900.0
[verifier]
timeout_sec = 240
env = { KEY = "\${KEY}" }
[environment]
docker_image = "example.org/demo:1"
build_timeout_sec = 1200
cpus = 1.5
memory = "2G"
storage_mb = 10240
network_mode = "allowlist"
allowed_hosts = ["pypi.org"]
env = { MODE = "fast", TOKEN = "\${TOKEN}", LEVEL = "\${LEVEL:-3}" }
[[environment.mcp_servers]]
name = "search"
url = "http://127.0.0.1:1/sse"
`,
    'instruction.md': '<!-- a canary: do not train on this -->\n\nWrite a program.\n',
  })
  const variable = (name: string) => (name === 'TOKEN' ? 'abc' : undefined)
  const task = await loadHarborTask(dir, { ...onImages, variable, more: { num_samples: 4 } })
  expect(task).toMatchObject({
    task_id: 'org/demo',
    instruction: 'Write a program.\n',
    num_samples: 4,
    timeout_seconds: 900,
    budgets: { init: 1200, evaluate: 540 },
    runtime: {
      backend: 'docker',
      image: 'example.org/demo:1',
      workdir: '/app',
      prepare: [],
      cpus: 1.5,
      memory_mb: 2048,
      storage_mb: 10_240,
      allow_hosts: ['pypi.org'],
      env: { MODE: 'fast', TOKEN: 'abc', LEVEL: '3' },
    },
    agent: { harness: 'codex', mcp_servers: [{ name: 'search', transport: 'sse' }] },
    evaluator: {
      strategy: 'harbor',
      config: {
        task_dir: dir,
        verifier_timeout_seconds: 240,
        env: { KEY: '${KEY}' },
        paths: ['.', '/app/out.txt', '/data/model'],
        exclude: ['conftest.py'],
      },
    },
    metadata: { difficulty: 'hard', made: '2024-01-02T03:04:05.000Z', harbor: { dir, name: 'org/demo' } },
  })
})

test('loadHarborTask() uses the defaults of Harbor: the folder name, ten minutes for tests, network access', async () => {
  const dir = await makeTask({})
  const task = await loadHarborTask(dir, onMachine)
  expect(task.task_id).toBe(dir.split('/').at(-1))
  expect(task.runtime).toMatchObject({ allow_internet: true, workdir: '/app' })
  expect(task.evaluator?.config).toMatchObject({ verifier_timeout_seconds: 600, paths: ['.'] })
})

test('loadHarborTask() copies only artifacts for tests in a separate environment', async () => {
  const dir = await makeTask({ 'task.toml': 'artifacts = ["/app/a"]\n[verifier]\nenvironment_mode = "separate"\n' })
  const { evaluator } = await loadHarborTask(dir, onMachine)
  expect(evaluator?.config).toMatchObject({ paths: ['/logs/artifacts', '/app/a'] })
})

test('loadHarborTask() reports all problems at once', async () => {
  const dir = await makeTask({
    'task.toml': `
[[steps]]
name = "one"
[verifier]
network_mode = "public"
[environment]
os = "Windows"
network_mode = "no-network"
healthcheck = { command = "true" }
`,
    'instruction.md': undefined,
    'tests/test.sh': undefined,
  })
  expect(await problemsOf(loadHarborTask(dir, onMachine))).toEqual([
    'tasks with several steps are not supported',
    'environment.os is windows; sandboxes are always Linux',
    'environment.healthcheck is not supported: sandboxes start no services',
    'the network of the agent is no-network and that of the tests public; they must be equal',
    'there is no instruction.md',
    'there is no tests/test.sh',
  ])
})

test('loadHarborTask() reports the line or field of an error in task.toml', async () => {
  const syntax = await makeTask({ 'task.toml': '[agent]\ntimeout_sec = = 3\n' })
  expect((await problemsOf(loadHarborTask(syntax, onMachine)))[0]).toMatch(/^task\.toml, line 2: /)
  const values = await makeTask({ 'task.toml': '[agent]\ntimeout_sec = "long"\n[environment]\nmemory = "much"\n' })
  expect(await problemsOf(loadHarborTask(values, onMachine))).toEqual([
    expect.stringMatching(/^task\.toml, agent\.timeout_sec: /),
    'task.toml, environment.memory: must be like 512M or 2G',
  ])
})

test('loadHarborTask() explains how to build a missing image, and uses a given image', async () => {
  const dir = await makeTask({})
  const [problem] = await problemsOf(loadHarborTask(dir, onImages))
  expect(problem).toContain(`docker build -t NAME ${join(dir, 'environment')}`)
  const { runtime } = await loadHarborTask(dir, { ...onImages, image: 'built:1' })
  expect(runtime).toMatchObject({ image: 'built:1', workdir: '/app', prepare: [] })
})

test('loadHarborTask() converts a Dockerfile to steps if the runtime uses no images', async () => {
  const dir = await makeTask({
    'environment/Dockerfile': `# syntax=docker/dockerfile:1
FROM python:3.12 AS base
ARG VERSION=1
ENV HOME_DIR=/srv/app NAME="a b" PATH=/more:$PATH
WORKDIR $HOME_DIR
COPY src/ ./
COPY one.txt two.txt /data/
COPY --chmod=755 run.sh /usr/local/bin/run
RUN echo "$VERSION" \\
    # and more
    && make
USER agent
EXPOSE 80
RUN ["echo", "it's"]
CMD ["run"]
`,
    'environment/src/a.py': 'a',
    'environment/src/lib/b.py': 'b',
    'environment/one.txt': '1',
    'environment/two.txt': '2',
    'environment/run.sh': '',
  })
  const { runtime } = await loadHarborTask(dir, onMachine)
  const context = join(dir, 'environment')
  const env = {
    HOME_DIR: '/srv/app',
    NAME: 'a b',
    PATH: '/more:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  }
  expect(runtime).toMatchObject({ workdir: '/srv/app', env })
  expect(runtime?.prepare).toMatchObject([
    { type: 'exec', command: "mkdir -p -- '/srv/app'", cwd: '/' },
    { type: 'upload_file', source: join(context, 'src/a.py'), target: '/srv/app/a.py' },
    { type: 'upload_dir', source: join(context, 'src/lib'), target: '/srv/app/lib' },
    { type: 'upload_file', source: join(context, 'one.txt'), target: '/data/one.txt' },
    { type: 'upload_file', source: join(context, 'two.txt'), target: '/data/two.txt' },
    { type: 'upload_file', source: join(context, 'run.sh'), target: '/usr/local/bin/run' },
    { type: 'exec', command: "chmod -R '755' '/usr/local/bin/run'" },
    {
      type: 'exec',
      command: expect.stringMatching(/^echo "\$VERSION"\s+&& make$/),
      cwd: '/srv/app',
      env: { ...env, VERSION: '1' },
    },
    { type: 'exec', command: String.raw`'echo' 'it'\''s'`, cwd: '/srv/app' },
  ])
})

test('loadHarborTask() rejects unsupported Dockerfile instructions with their line', async () => {
  const dir = await makeTask({
    'environment/Dockerfile': `FROM golang AS build
WORKDIR /app
COPY ../secret missing.txt /app/
ADD https://example.org/a.tar.gz /app
SHELL ["bash"]
FROM debian
COPY --from=build /a /b
RUN <<EOF
true
EOF
`,
  })
  expect((await problemsOf(loadHarborTask(dir, onMachine))).slice(0, 6)).toEqual([
    'environment/Dockerfile, line 3: environment/ has no ../secret',
    'environment/Dockerfile, line 4: ADD of URLs and archives is not supported; COPY files, or download them with RUN',
    'environment/Dockerfile, line 5: SHELL is not supported; build an image',
    'environment/Dockerfile, line 6: more than one stage is not supported; build an image',
    'environment/Dockerfile, line 7: COPY --from=build is not supported',
    'environment/Dockerfile, line 8: RUN with a here-document (<<) is not supported',
  ])
  // With an image the instructions are not used.
  expect((await loadHarborTask(dir, { ...onImages, image: 'built' })).runtime).toMatchObject({ workdir: '/app' })
})

test('loadHarborTasks() loads the tasks of a folder ordered by name, or the folder itself', async () => {
  const one = await makeTask({ 'task.toml': '[task]\nname = "org/one"\n' })
  expect((await loadHarborTasks(one, onMachine)).map(({ task_id: id }) => id)).toEqual(['org/one'])
  const folder = join(root, 'many')
  for (const name of ['b', 'a']) {
    await mkdir(join(folder, name, 'tests'), { recursive: true })
    await writeFile(join(folder, name, 'task.toml'), '[environment]\nworkdir = "/w"\n')
    await writeFile(join(folder, name, 'instruction.md'), name)
    await writeFile(join(folder, name, 'tests', 'test.sh'), '')
  }
  await mkdir(join(folder, 'no-task'))
  expect((await loadHarborTasks(folder, onMachine)).map(({ instruction }) => instruction)).toEqual(['a', 'b'])
})

test('loadHarborTasks() reports the problems of all tasks, and a folder without tasks', async () => {
  const folder = join(root, 'broken')
  for (const name of ['a', 'b']) {
    await mkdir(join(folder, name), { recursive: true })
    await writeFile(join(folder, name, 'task.toml'), '')
  }
  const problems = await problemsOf(loadHarborTasks(folder, onMachine))
  expect(problems.filter((problem) => problem === 'there is no instruction.md')).toHaveLength(2)
  expect(await problemsOf(loadHarborTasks(join(root, 'none'), onMachine))).toEqual(['the folder does not exist'])
  await mkdir(join(root, 'empty'))
  expect(await problemsOf(loadHarborTasks(join(root, 'empty'), onMachine))).toEqual([
    'neither this folder nor a folder in it has a task.toml',
  ])
})
