import { execFileSync } from 'node:child_process'
import { chmod, mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { PrepareAction } from '../../src/model/task.ts'
import { Checkouts } from '../../src/node/sandbox/prepare/checkouts.ts'
import { prepareSandbox } from '../../src/node/sandbox/prepare/prepare-sandbox.ts'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import type { Runtime, Sandbox, SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import { WarmStarts } from '../../src/node/sandbox/prepare/warm-start.ts'
import { runtimeConfig } from '../support/bubblewrap.ts'

const LIMITS = { maxBytes: 1e9, maxAgeMs: 1e9 }
const scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-checkouts-'))
afterAll(() => rm(scratch, { recursive: true, force: true }))

/** Runs git as the author of a test repository. */
function git(cwd: string, ...args: string[]): string {
  const env = {
    PATH: process.env['PATH'],
    HOME: scratch,
    GIT_AUTHOR_NAME: 'a',
    GIT_AUTHOR_EMAIL: 'a@b',
    GIT_COMMITTER_NAME: 'a',
    GIT_COMMITTER_EMAIL: 'a@b',
  }
  return execFileSync('git', ['-c', 'init.defaultBranch=main', ...args], { cwd, encoding: 'utf8', env }).trim()
}

interface Example {
  path: string
  /** In order of creation. The last commit is on no branch. */
  commits: string[]
}

let example: Example
let count = 0
beforeAll(async () => {
  const path = join(scratch, 'origin')
  await mkdir(path)
  git(path, 'init', '-q')
  const commits: string[] = []
  for (const text of ['one', 'two', 'three', 'hidden']) {
    await writeFile(join(path, 'file'), `${text}\n`)
    await writeFile(join(path, 'run.sh'), '#!/bin/sh\necho ran\n')
    await chmod(join(path, 'run.sh'), 0o755)
    git(path, 'add', '.')
    git(path, 'commit', '-qm', text)
    commits.push(git(path, 'rev-parse', 'HEAD'))
  }
  git(path, 'reset', '-q', '--hard', 'HEAD~1')
  git(path, 'tag', 'v1')
  example = { path, commits }
})

function checkoutsIn(dir: string, env: Record<string, string> = {}): Checkouts {
  return new Checkouts({
    dir,
    limits: LIMITS,
    env: { PATH: process.env['PATH'], HOME: scratch, ...env },
    now: Date.now,
  })
}

function step(commit: string, more: Record<string, unknown> = {}): PrepareAction {
  return PrepareAction.parse({ type: 'checkout', repository: example.path, commit, target: 'repo', ...more })
}

for (const kind of ['local', 'bubblewrap'] as const) {
  const runtimeIn = (dir: string) => runtimes.create(runtimes.config.parse(runtimeConfig(kind)), { dir, now: Date.now })
  const probe = runtimeIn(join(scratch, 'check', kind))
  const checked = await probe.check(AbortSignal.timeout(30_000))
  await probe[Symbol.asyncDispose]()

  describe(`checkouts in ${kind}`, { timeout: 60_000 }, () => {
    beforeEach((context) => {
      if (!checked.isUsable) context.skip(`${kind} cannot run here: ${checked.reason}`)
    })

    let runtime: Runtime
    let checkouts: Checkouts
    const cache = join(scratch, `cache-${kind}`)

    beforeAll(() => {
      runtime = runtimeIn(join(scratch, 'data', kind))
      checkouts = checkoutsIn(cache)
    })
    afterAll(() => runtime[Symbol.asyncDispose]())

    const toSpec = (): SandboxSpec => ({
      id: `checkout-${process.pid}-${(count += 1)}`,
      workdir: '/workspace',
      env: {},
      limits: {},
      network: { kind: kind === 'local' ? 'open' : 'none' },
      mounts: [],
      labels: {},
      leaseUntil: Date.now() + 600_000,
    })

    async function prepared(actions: PrepareAction[]): Promise<Sandbox> {
      const sandbox = await runtime.start(toSpec(), AbortSignal.timeout(30_000))
      await prepareSandbox(sandbox, actions, AbortSignal.timeout(30_000), { checkouts })
      return sandbox
    }

    async function run(sandbox: Sandbox, script: string): Promise<string> {
      const execution = await sandbox.exec({ command: ['sh', '-c', `${script} 2>&1`], leftovers: 'end' })
      const chunks: Buffer[] = []
      for await (const chunk of execution.output('stdout')) chunks.push(chunk)
      return Buffer.concat(chunks).toString().trim()
    }

    test('the sandbox has the tree and history of the commit, without later commits, refs and paths of this machine', async () => {
      const [first = '', second = ''] = example.commits
      await using sandbox = await prepared([step(second)])
      expect(await run(sandbox, 'cd repo && cat file && ./run.sh && git status --porcelain')).toBe('two\nran')
      expect(await run(sandbox, 'cd repo && git rev-list --all HEAD')).toBe(`${second}\n${first}`)
      expect(await run(sandbox, 'cd repo && echo more >> file && git diff --stat')).toContain('1 insertion')
      expect(await run(sandbox, 'cd repo && git branch; git tag; git remote; git reflog')).toBe('* (no branch)')
      expect(await run(sandbox, `grep -rla -e '${scratch}' repo; grep -c . repo/.git/packed-refs`)).toMatch(
        /No such file/,
      )
      expect(await run(sandbox, `cd repo; git cat-file -t ${example.commits[2]}`)).toContain('fatal')
    })

    test('a commit that is on no branch is checked out with limited depth', async () => {
      const hidden = example.commits[3] ?? ''
      await using sandbox = await prepared([step(hidden, { depth: 1 })])
      expect(await run(sandbox, 'cd repo && cat file && git rev-list HEAD')).toBe(`hidden\n${hidden}`)
    })

    test('the target may be the working directory', async () => {
      const [first = ''] = example.commits
      await using sandbox = await prepared([step(first, { target: '.' })])
      expect(await run(sandbox, 'cat file; git status --porcelain')).toBe('one')
    })

    test('concurrent checkouts fetch the repository once and check out each commit once', async () => {
      const own = join(scratch, `once-${kind}`)
      const log = join(scratch, `asked-${kind}`)
      const bin = join(scratch, `bin-${kind}`)
      await mkdir(bin)
      // Logs its arguments and runs the real git.
      const real = execFileSync('which', ['git'], { encoding: 'utf8' }).trim()
      await writeFile(join(bin, 'git'), `#!/bin/sh\necho "$@" >> ${log}\nexec ${real} "$@"\n`, { mode: 0o755 })
      checkouts = checkoutsIn(own, { PATH: `${bin}:${process.env['PATH']}` })
      const [first = '', second = ''] = example.commits
      const sandboxes = await Promise.all([first, first, first, second].map((commit) => prepared([step(commit)])))
      for (const sandbox of sandboxes) await sandbox.stop()
      const commands = (await readFile(log, 'utf8')).split('\n')
      expect(commands.filter((line) => line.includes(`-- ${example.path} +refs`))).toHaveLength(1)
      expect(commands.filter((line) => line.includes(' checkout '))).toHaveLength(2)
      checkouts = checkoutsIn(cache)
    })

    test('a prepared sandbox is reused for the same repository and commit only', async () => {
      const warm = new WarmStarts(runtime, { checkouts })
      const [first = '', second = ''] = example.commits
      const start = (commit: string) => warm.start(toSpec(), [step(commit)], AbortSignal.timeout(30_000))
      await using cold = (await start(first)).sandbox
      const again = await start(first)
      await using found = again.sandbox
      expect({ isWarm: again.isWarm, said: await run(found, 'cd repo && cat file && git status --porcelain') }).toEqual(
        {
          isWarm: true,
          said: 'one',
        },
      )
      const other = await start(second)
      await using _ = other.sandbox
      expect(other.isWarm).toBe(false)
      expect(await run(cold, 'cat repo/file')).toBe('one')
    })

    test('a missing commit or an unreachable repository fails with a message that names it', async () => {
      const missing = 'a'.repeat(40)
      await expect(prepared([step(missing)])).rejects.toMatchObject({
        code: 'config.invalid',
        message: expect.stringContaining(`${example.path} has no commit ${missing}`),
      })
      const repository = 'https://127.0.0.1:9/x.git'
      const rejected = await prepared([step(missing, { repository })]).catch((error: unknown) => error)
      expect(rejected).toMatchObject({ code: 'runtime.prepare-failed' })
      expect((rejected as Error).message).toContain('https://127.0.0.1:9/x.git')
      for (const { id } of await runtime.list()) await runtime.remove(id)
    })
  })
}

test('no setting of the user and no hook, filter or submodule of a repository runs a program on this machine', async () => {
  const proof = join(scratch, 'proof')
  const home = join(scratch, 'home')
  await mkdir(home)
  const evil = join(scratch, 'evil')
  await mkdir(join(evil, '.hooks'), { recursive: true })
  git(evil, 'init', '-q')
  await writeFile(join(evil, '.gitattributes'), '* filter=evil\n')
  await writeFile(join(evil, '.gitmodules'), `[submodule "s"]\n\tpath = s\n\turl = ext::sh -c "touch ${proof}"\n`)
  git(evil, 'add', '.')
  git(evil, 'update-index', '--add', '--cacheinfo', `160000,${'1'.repeat(40)},s`)
  git(evil, 'commit', '-qm', 'evil')
  const commit = git(evil, 'rev-parse', 'HEAD')
  for (const hook of ['post-checkout', 'reference-transaction', 'post-update', 'pre-receive'])
    await writeFile(join(evil, '.git', 'hooks', hook), `#!/bin/sh\ntouch ${proof}\n`, { mode: 0o755 })
  git(evil, 'config', 'uploadpack.packObjectsHook', `touch ${proof}; false`)
  const filters = `[filter "evil"]\n\tsmudge = touch ${proof}\n\tclean = cat\n[core]\n\tsshCommand = touch ${proof}\n`
  await writeFile(join(home, '.gitconfig'), `${filters}[core]\n\tfsmonitor = touch ${proof}\n`)
  const checkouts = checkoutsIn(join(scratch, 'cache-evil'), { HOME: home, GIT_DIR: '/nowhere' })
  const uploaded: string[] = []
  const upload = async (source: string): Promise<void> => void uploaded.push(...(await readdir(source)))
  const checkout = { repository: evil, commit, target: '/x' }
  await checkouts.upload(checkout, { upload } as unknown as Sandbox, AbortSignal.timeout(30_000))
  expect(uploaded.toSorted()).toEqual(['.git', '.gitattributes', '.gitmodules', 's'])
  await expect(readFile(proof)).rejects.toMatchObject({ code: 'ENOENT' })
})

test('an aborted checkout releases its lock and leaves no partial result', async () => {
  const [first = ''] = example.commits
  const dir = join(scratch, 'cache-cut')
  const bin = join(scratch, 'bin-slow')
  await mkdir(bin)
  await writeFile(join(bin, 'git'), '#!/bin/sh\nsleep 60\n', { mode: 0o755 })
  const upload = async (): Promise<void> => {}
  const sandbox = { upload } as unknown as Sandbox
  const checkout = { repository: example.path, commit: first, target: '/x' }
  const slow = checkoutsIn(dir, { PATH: `${bin}:/usr/bin:/bin` }).upload(checkout, sandbox, AbortSignal.timeout(300))
  await expect(slow).rejects.toMatchObject({ name: 'TimeoutError' })
  await checkoutsIn(dir).upload(checkout, sandbox, AbortSignal.timeout(30_000))
  expect((await readdir(dir)).filter((name) => name.includes('lock'))).toEqual([])
})
