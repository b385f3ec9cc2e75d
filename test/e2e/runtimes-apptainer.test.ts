import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { accessSync, constants, existsSync } from 'node:fs'
import { chmod, chown, mkdir, mkdtemp, readdir, readFile, realpath, rm, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { apptainer } from '../../src/node/sandbox/runtimes/apptainer.ts'
import { describeRuntime } from '../../src/node/sandbox/runtimes/runtime.contract.ts'
import { PROMPTLY_MS } from '../../src/node/sandbox/runtimes/sandbox-probe.contract.ts'
import type { ExecSpec, Runtime, Sandbox, SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import { isAlive } from '../../src/node/sandbox/linux/process/processes.ts'
import { findApptainer, type Apptainer } from '../support/apptainer.ts'

const source = fileURLToPath(new URL('../../src/node/sandbox/runtimes/apptainer.ts', import.meta.url))
/** Set by runtimes-apptainer-user.test.ts before it changes to another user. */
const found = globalThis.sharedApptainer ?? findApptainer()
/** A user id that the Apptainer of scripts/install-apptainer.ts knows. */
const USER = 1_900_001
const who = process.getuid?.() === 0 ? 'as root' : 'as an ordinary user'

if (typeof found === 'string') {
  console.log(`apptainer cannot run here: ${found}`)
  test(`apptainer ${who} is a sandbox`, (context) => context.skip(found))
} else {
  afterAll(() => found[Symbol.dispose]())
  describeContract(found)
  describeOptions(found)
}

function describeContract({ program, image }: Apptainer): void {
  const config = { kind: 'apptainer', program, image }
  describeRuntime(`apptainer ${who}`, (dir) => create(config, dir), {
    image,
    orphanScript: `
const [script, dir, id] = process.argv.slice(1)
const { apptainer } = await import(${JSON.stringify(source)})
const runtime = apptainer.create(apptainer.config.parse(${JSON.stringify(config)}), { dir, now: Date.now })
const spec = { id, workdir: '/workspace', env: {}, limits: {}, network: { kind: 'none' }, mounts: [], labels: {}, leaseUntil: 0 }
const sandbox = await runtime.start(spec, AbortSignal.timeout(30000))
const execution = await sandbox.exec({ command: ['bash', '-c', script], leftovers: 'keep' })
for await (const _ of execution.output('stdout')) console.log('up')
`,
  })
}

function describeOptions({ program, image }: Apptainer): void {
  describe(`apptainer ${who}, with options`, () => {
    let dir: string
    let own: string
    let count = 0
    const toSpec = (more: Partial<SandboxSpec> = {}): SandboxSpec => ({
      id: `options-${process.pid}-${(count += 1)}`,
      workdir: '/work/deep',
      env: {},
      limits: {},
      network: { kind: 'none' },
      mounts: [],
      labels: {},
      leaseUntil: 0,
      ...more,
    })
    const open = (more: object) => create({ kind: 'apptainer', program, ...more }, join(dir, 'data'))
    beforeAll(async () => {
      dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-apptainer-'))
      own = await makeImage(image, join(dir, 'image'))
    })
    afterAll(() => rm(dir, { recursive: true, force: true }))

    test('check() names the missing program or image', async () => {
      const signal = AbortSignal.timeout(30_000)
      await using without = open({ program: ['no-such-apptainer'] })
      expect(await without.check(signal)).toMatchObject({
        isUsable: false,
        reason: expect.stringMatching('no-such-apptainer cannot be started'),
      })
      await using imageless = open({ image: join(dir, 'no-image') })
      expect(await imageless.check(signal)).toMatchObject({
        isUsable: false,
        reason: expect.stringMatching('neither a SIF file nor'),
      })
      const empty = join(dir, 'empty')
      await mkdir(empty)
      await using useless = open({ image: empty })
      expect(await useless.check(signal)).toMatchObject({
        isUsable: false,
        reason: expect.stringMatching('Cannot start sandbox'),
      })
      await using unnamed = open({})
      const checked = await unnamed.check(signal)
      expect(checked).toMatchObject({
        isUsable: true,
        notes: expect.arrayContaining([expect.stringMatching('set runtime.image')]),
      })
      expect(await unnamed.list()).toEqual([])
    })

    test('start() fails with runtime.image-missing for a missing image and with runtime.unsupported without an image', async () => {
      await using runtime = open({})
      const signal = AbortSignal.timeout(30_000)
      await expect(runtime.start(toSpec(), signal)).rejects.toMatchObject({ code: 'runtime.unsupported' })
      const missing = toSpec({ image: join(dir, 'no-such-image') })
      await expect(runtime.start(missing, signal)).rejects.toMatchObject({ code: 'runtime.image-missing' })
    })

    test('a sandbox can change the files of its image; the image itself does not change', async () => {
      await using runtime = open({ image: own })
      await using sandbox = await runtime.start(toSpec({ workdir: '/testbed' }), AbortSignal.timeout(30_000))
      const script =
        'cat code src/a; echo $FROM_IMAGE; echo new > code && rm -r src && mkdir src && echo b > src/b && ls src && git init -q . && git status --porcelain'
      expect(await run(sandbox, script)).toMatchObject({
        stdout: 'original\na\nset\nb\n?? code\n?? src/\n',
        exitCode: 0,
      })
      expect(await run(sandbox, 'mv src moved && ls moved && whoami && echo ~')).toMatchObject({ exitCode: 0 })
      await sandbox.stop()
      expect(await readFile(join(own, 'testbed', 'code'), 'utf8')).toBe('original\n')
      expect(await readdir(join(own, 'testbed', 'src'))).toEqual(['a'])
    })

    test('mounts can have unusual names, be nested and lie in the workdir, and their files keep their owners', async () => {
      const [outer, inner] = [join(dir, 'odd, "na:me'), join(dir, 'inner')]
      await mkdir(join(outer, 'inner'), { recursive: true })
      await mkdir(inner)
      await writeFile(join(outer, 'file'), 'outer')
      await writeFile(join(inner, 'file'), 'inner')
      await chmod(inner, 0o777)
      const { uid } = await stat(join(inner, 'file'))
      await using runtime = open({ image: own })
      const mounts = [
        { source: outer, target: '/testbed/odd, "na:me', isReadOnly: true },
        { source: inner, target: '/testbed/odd, "na:me/inner', isReadOnly: false },
        { source: join(outer, 'file'), target: '/home/agent/new/file', isReadOnly: true },
      ]
      const spec = toSpec({ workdir: '/testbed', mounts })
      await using sandbox = await runtime.start(spec, AbortSignal.timeout(30_000))
      const script =
        'cd odd*; cat file inner/file ~/new/file; touch x || echo no; touch inner/new ~/new/own ../own && echo yes'
      expect(await run(sandbox, script)).toMatchObject({ stdout: 'outerinnerouterno\nyes\n' })
      await sandbox.stop()
      expect((await stat(join(inner, 'file'))).uid).toBe(uid)
      expect((await readdir(inner)).toSorted()).toEqual(['file', 'new'])
    })

    /** Builds a SIF file with low compression, which is ten times as fast as the default. */
    async function buildSif(): Promise<string> {
      const sif = join(dir, 'image.sif')
      if (existsSync(sif)) return sif
      const fast = ['--mksquashfs-args', '-comp gzip -Xcompression-level 1']
      const [file, ...args] = [...program, '--silent', 'build', ...fast, sif, own]
      execFileSync(file, args, { env: { PATH: process.env['PATH'], HOME: dir, APPTAINER_TMPDIR: dir } })
      return sif
    }
    const change =
      'cat code src/a; echo $FROM_IMAGE; echo new > code && rm -r src && mkdir src && ls -A src; touch x; exit 5'

    test('a sandbox starts from a SIF file; check() reports missing access to /dev/fuse', async () => {
      const sif = await buildSif()
      await using runtime = open({ image: sif })
      if (process.getuid?.() !== 0 && !mayUse('/dev/fuse')) {
        const checked = await runtime.check(AbortSignal.timeout(30_000))
        return expect(checked).toMatchObject({ isUsable: false, reason: expect.stringMatching('/dev/fuse') })
      }
      await using sandbox = await runtime.start(toSpec({ workdir: '/testbed' }), AbortSignal.timeout(30_000))
      expect(await run(sandbox, change)).toMatchObject({ stdout: 'original\na\nset\n', exitCode: 5 })
      const before = performance.now()
      await sandbox.stop()
      expect(performance.now() - before).toBeLessThan(PROMPTLY_MS)
    })

    test('an ordinary user starts a sandbox from a SIF file with FUSE, and no FUSE process remains', async (context) => {
      if (process.getuid?.() !== 0) return context.skip('root has to open /dev/fuse for it')
      const theirs = findApptainer({ isForOthers: true })
      if (typeof theirs === 'string') return context.skip(theirs)
      using _ = theirs
      const sif = await buildSif()
      const config = { kind: 'apptainer', program: theirs.program, image: sif }
      const dataDir = await mkdtemp(join(dir, 'user-'))
      await chmod(dir, 0o755)
      await chown(dataDir, USER, USER)
      const script = `
process.setgroups([]); process.setgid(${USER}); process.setuid(${USER})
const { apptainer } = await import(${JSON.stringify(source)})
const runtime = apptainer.create(apptainer.config.parse(${JSON.stringify(config)}), { dir: ${JSON.stringify(dataDir)}, now: Date.now })
const sandbox = await runtime.start(${JSON.stringify(toSpec({ workdir: '/testbed' }))}, AbortSignal.timeout(30000))
const execution = await sandbox.exec({ command: ['bash', '-c', ${JSON.stringify(change)}], leftovers: 'end' })
for await (const chunk of execution.output('stdout')) process.stdout.write(chunk)
const { exitCode } = await execution.result
const { readdirSync, readFileSync } = await import('node:fs')
const count = () => readdirSync('/proc').filter((pid) => { try { return readFileSync('/proc/' + pid + '/cmdline', 'latin1').startsWith('/usr/bin/squashfuse') && readFileSync('/proc/' + pid + '/mounts', 'latin1').includes(${JSON.stringify(dataDir)}) } catch { return false } }).length
const before = count()
await sandbox.stop()
await runtime[Symbol.asyncDispose]()
console.log(exitCode, before, count())`
      const device = join(dataDir, 'fuse')
      const prepare = `mknod -m 666 ${device} c 10 229 && mount --bind ${device} /dev/fuse && exec "$@"`
      const node = [process.execPath, '--input-type=module', '-e', script]
      const stdout = execFileSync('unshare', ['--mount', 'sh', '-c', prepare, 'sh', ...node], { encoding: 'utf8' })
      expect(stdout).toBe('original\na\nset\n5 1 0\n')
    })

    test('with an open network the sandbox socket listens on the loopback interface of the host', async () => {
      const http = createServer((request, response) => response.end(`you asked for ${request.url}`))
      const socket = { port: 0, accept: (incoming: Socket) => void http.emit('connection', incoming) }
      await using runtime = open({ image })
      const spec = toSpec({ network: { kind: 'open' }, socket })
      await using sandbox = await runtime.start(spec, AbortSignal.timeout(30_000))
      const get = `exec 3<>/dev/tcp/127.0.0.1/${sandbox.socketPort}; printf "GET /x HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" >&3; cat <&3`
      expect((await run(sandbox, get)).stdout).toContain('you asked for /x')
      http.closeAllConnections()
    })

    test('all processes of a sandbox end when the process that started it is killed', async () => {
      const config = { kind: 'apptainer', program, image }
      const spec = toSpec()
      const script = `
const { apptainer } = await import(${JSON.stringify(source)})
const runtime = apptainer.create(apptainer.config.parse(${JSON.stringify(config)}), { dir: ${JSON.stringify(join(dir, 'data'))}, now: Date.now })
const sandbox = await runtime.start(${JSON.stringify(spec)}, AbortSignal.timeout(30000))
await sandbox.exec({ command: ['setsid', 'sleep', '1234567'], leftovers: 'keep' })
console.log('up')`
      const owner = spawn(process.execPath, ['--input-type=module', '-e', script], {
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      await once(owner.stdout, 'data')
      await using runtime = open({ image })
      const { processes } = JSON.parse(await readFile(join(dir, 'data', 'sandboxes', spec.id, 'sandbox.json'), 'utf8'))
      expect(processes.length).toBeGreaterThanOrEqual(3)
      owner.kill('SIGKILL')
      const deadline = performance.now() + 5000
      while ((await Promise.all(processes.map(isAlive))).includes(true)) {
        expect(performance.now()).toBeLessThan(deadline)
        await sleep(20)
      }
      await runtime.remove(spec.id)
    })

    test('eight sandboxes can start at the same time', async () => {
      await using runtime = open({ image })
      const all = await Promise.all(
        Array.from({ length: 8 }, () => runtime.start(toSpec(), AbortSignal.timeout(60_000))),
      )
      const answers = await Promise.all(all.map((sandbox, index) => run(sandbox, `echo ${index}`)))
      expect(answers.map(({ stdout }) => stdout)).toEqual(all.map((_, index) => `${index}\n`))
      await Promise.all(all.map((sandbox) => sandbox.stop()))
      expect(await runtime.list()).toEqual([])
    })
  })
}

function mayUse(path: string): boolean {
  try {
    accessSync(path, constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

/** Makes an image with a workdir and an environment variable, like images that are built from Docker images. */
async function makeImage(from: string, to: string): Promise<string> {
  execFileSync('cp', ['-a', '--no-preserve=ownership', '--', from, to])
  await mkdir(join(to, 'testbed', 'src'), { recursive: true })
  await writeFile(join(to, 'testbed', 'code'), 'original\n')
  await writeFile(join(to, 'testbed', 'src', 'a'), 'a\n')
  await mkdir(join(to, '.singularity.d', 'env'), { recursive: true })
  await writeFile(join(to, '.singularity.d', 'env', '10-image.sh'), 'export FROM_IMAGE=set\n', { mode: 0o755 })
  return to
}

function create(config: object, dir: string): Runtime {
  return apptainer.create(apptainer.config.parse(config), { dir, now: Date.now })
}

async function run(sandbox: Sandbox, script: string, more: Partial<ExecSpec> = {}) {
  const command = ['bash', '-c', script] as const
  const execution = await sandbox.exec({ command, leftovers: 'end', timeoutMs: 20_000, ...more })
  const chunks: Buffer[] = []
  for await (const chunk of execution.output('stdout')) chunks.push(chunk)
  return { ...(await execution.result), stdout: Buffer.concat(chunks).toString() }
}
