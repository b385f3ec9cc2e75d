import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import {
  chmod,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  realpath,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { createServer as createHttpServer, type Server as HttpServer } from 'node:http'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import { RolloutError, type FailureCode } from '../../../model/failure.ts'
import type { Runtime, RuntimeCheck, Sandbox, SandboxSpec } from './runtime.ts'
import { PROMPTLY_MS, processesWith, readText, runCommand, runScript, toProbeSpec } from './sandbox-probe.contract.ts'

export interface RuntimeContract {
  /**
   * A program for `node --input-type=module -e`: starts a sandbox whose id is its last argument, in the folder before
   * it.
   */
  orphanScript: string
  /** Image of sandboxes, if the runtime needs one. */
  image?: string
  /** Names of tests that fail in this setup, with the reasons. */
  exceptions?: Readonly<Record<string, string>>
}

const MB = 1024 * 1024
const LIMITS = { maxBytes: 100 * MB, maxFiles: 10_000 }
/** A program that tries to survive: forks twice, leaves its session, ignores all signals that can be ignored. */
const hostile = (token: string) =>
  `(setsid bash -c 'trap "" TERM HUP INT QUIT; (setsid bash -c "trap \\"\\" TERM HUP; while :; do sleep 0.05; done" ${token} &) ; while :; do sleep 0.05; done' ${token} >/dev/null 2>&1 &) ; trap "" TERM; echo up; while :; do sleep 0.05; done`

/** Numbers of inotify_init1 and rt_sigqueueinfo. */
const [INOTIFY_INIT, SEND_SIGNAL] = process.arch === 'arm64' ? [26, 138] : [294, 129]
/** Creates inotify instances and queues signals to itself, up to the given number, prints how many, and keeps them. */
const TAKE_ALL = `
use POSIX;
$| = 1;
my $wanted = shift() + 0;
my ($instances, $signals) = (0, 0);
$instances += 1 while $instances < $wanted && syscall(${INOTIFY_INIT}, 0) != -1;
sigprocmask(SIG_BLOCK, POSIX::SigSet->new(40));
my $info = pack('lll x4 ll x104', 40, 0, -1, $$, $<);
$signals += 1 while $signals < $wanted && syscall(${SEND_SIGNAL}, $$, 40, $info) != -1;
print "inotify $instances, signals $signals\\n";
sleep 25 if $wanted > 2;
`

/**
 * Tests the contract of a runtime with real sandboxes. Tests of capabilities that the runtime does not claim are
 * skipped with a reason.
 */
export function describeRuntime(
  name: string,
  createRuntime: (dir: string) => Runtime,
  contract: RuntimeContract,
): void {
  describe(name, { timeout: 60_000 }, () => {
    let dir: string
    let runtime: Runtime
    let checked: RuntimeCheck
    let shared: Sandbox
    let count = 0

    beforeAll(async () => {
      dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-runtime-'))
      runtime = createRuntime(join(dir, 'data'))
      checked = await runtime.check(AbortSignal.timeout(30_000))
      if (!checked.isUsable) console.log(`${name} cannot run here: ${checked.reason}`)
      else shared = await start()
    })
    afterAll(async () => {
      await shared?.stop()
      await runtime[Symbol.asyncDispose]()
      if (checked.isUsable) expect(await runtime.list()).toEqual([])
      await rm(dir, { recursive: true, force: true })
    })

    function toSpec(more: Partial<SandboxSpec> = {}): SandboxSpec {
      return toProbeSpec('contract', {
        ...(contract.image !== undefined && { image: contract.image }),
        network: { kind: runtime.capabilities.networks.includes('none') ? 'none' : 'open' },
        ...more,
      })
    }
    function start(more: Partial<SandboxSpec> = {}): Promise<Sandbox> {
      return runtime.start(toSpec(more), AbortSignal.timeout(30_000))
    }
    /** Registers a test that is skipped with a reason if `claim` returns one. */
    function when(claim: () => string | undefined, title: string, work: (context: TestContext) => Promise<void>): void {
      test(title, async (context) => {
        if (!checked.isUsable) return context.skip(checked.reason)
        const exception = contract.exceptions?.[title]
        if (exception !== undefined) return context.skip(exception)
        const missing = claim()
        if (missing !== undefined) return context.skip(`${name} does not claim ${missing}`)
        await work(context)
      })
    }
    const it = (title: string, work: (context: TestContext) => Promise<void>) => when(() => undefined, title, work)
    const limited = (limit: keyof SandboxSpec['limits']) => () =>
      runtime.capabilities.limits.includes(limit) ? undefined : `the limit ${limit}`
    const isolated = () => (runtime.capabilities.isolatesFiles ? undefined : 'to keep files apart')
    const isolatedProcesses = () => (runtime.capabilities.isolatesProcesses ? undefined : 'to keep processes apart')
    const offline = () => (runtime.capabilities.networks.includes('none') ? undefined : 'to cut off the network')
    const snapshots = () => (runtime.capabilities.supportsSnapshots ? undefined : 'snapshots')

    // --- commands -----------------------------------------------------------------------------------------------------

    it('exec() separates stdout and stderr and returns the exit code', async () => {
      const ran = await runScript(shared, 'echo out; echo err >&2; exit 7')
      expect(ran).toMatchObject({ stdout: 'out\n', stderr: 'err\n', exitCode: 7, signal: null, isTimedOut: false })
      expect(ran).toMatchObject({ stdoutBytes: 4, stderrBytes: 4 })
      expect(ran.durationMs).toBeGreaterThan(0)
    })

    it('exec() distinguishes a signal from an exit code above 128', async () => {
      expect(await runScript(shared, 'kill -9 $$')).toMatchObject({ exitCode: null, signal: 'SIGKILL' })
      expect(await runScript(shared, 'kill -TERM $$')).toMatchObject({ exitCode: null, signal: 'SIGTERM' })
      expect(await runScript(shared, 'exit 137')).toMatchObject({ exitCode: 137, signal: null })
    })

    it('exec() exits with 127 for a missing command, and fails for a missing directory', async () => {
      expect(await runCommand(shared, { command: ['no-such-program'] })).toMatchObject({ exitCode: 127 })
      const ran = await runCommand(shared, { command: ['true'], cwd: '/no/such/place' })
      expect(ran.exitCode).toBe(126)
      expect(ran.stderr).not.toBe('')
    })

    it('output() yields output while the command runs, to any number of readers, from any offset', async () => {
      await runScript(shared, 'mkfifo gate')
      const gated = await shared.exec({
        command: ['bash', '-c', 'echo one; read -r _ < gate; echo two'],
        leftovers: 'end',
        timeoutMs: 20_000,
      })
      const first = gated.output('stdout')[Symbol.asyncIterator]()
      expect(String((await first.next()).value)).toBe('one\n')
      const second = readText(gated.output('stdout'))
      const later = readText(gated.output('stdout', 4))
      await runScript(shared, 'echo > gate')
      expect(await second).toBe('one\ntwo\n')
      expect(await later).toBe('two\n')
      expect(String((await first.next()).value)).toBe('two\n')
      expect((await first.next()).done).toBe(true)
      await gated.result
      expect(await readText(gated.output('stdout', 6))).toBe('o\n')
      expect(await readText(gated.output('stdout', 100))).toBe('')
    })

    it('exec() passes more bytes than a pipe holds in and out unchanged', async () => {
      const bytes = randomBytes(3 * MB)
      const execution = await shared.exec({ command: ['cat'], stdin: bytes, leftovers: 'end', timeoutMs: 20_000 })
      const chunks: Buffer[] = []
      for await (const chunk of execution.output('stdout')) chunks.push(chunk)
      expect(Buffer.concat(chunks).equals(bytes)).toBe(true)
      expect(await runScript(shared, 'exit 0', { stdin: bytes })).toMatchObject({ exitCode: 0 })
      expect(await runScript(shared, 'cat')).toMatchObject({ stdout: '', exitCode: 0 })
    })

    it('exec() sets exactly the given environment', async () => {
      await using sandbox = await start({ env: { FROM_SPEC: 'a b\n"$x"', BOTH: 'spec' } })
      const env = { BOTH: 'exec', LD_PRELOAD: '/nonexistent.so', 'odd.name': '1', EMPTY: '' }
      const ran = await runCommand(sandbox, { command: ['env', '-0'], env })
      const got = Object.fromEntries(ran.stdout.split('\0').filter(Boolean).map(splitPair))
      const { PATH, HOME, ...rest } = got
      expect(PATH).toContain('/usr/bin')
      expect(HOME).toMatch(/^\//)
      expect(rest).toEqual({ FROM_SPEC: 'a b\n"$x"', ...env })
      expect(await runCommand(sandbox, { command: ['env'], env: { PATH: '/bin', HOME: '/' } })).toMatchObject({
        stdout: expect.stringContaining('PATH=/bin\n'),
      })
    })

    it('exec() exposes no environment variable in a command line', async () => {
      const token = `secret-${randomBytes(8).toString('hex')}`
      const execution = await shared.exec({ command: ['sleep', '30'], env: { KEY: token }, leftovers: 'end' })
      await sleep(300)
      expect(processesWith(token)).toEqual([])
      await execution.kill()
    })

    it('exec() runs in the writable workdir, or in cwd', async () => {
      expect(await runScript(shared, 'pwd && touch here && mkdir -p sub')).toMatchObject({
        stdout: `${shared.workdir}\n`,
      })
      expect(await runScript(shared, 'pwd', { cwd: 'sub' })).toMatchObject({ stdout: `${shared.workdir}/sub\n` })
      expect(await runScript(shared, 'pwd', { cwd: '/' })).toMatchObject({ stdout: '/\n' })
    })

    it('start() creates the given folders, which commands can write to, empty and replace', async () => {
      const folders = ['/polar/session', '/polar/session/logs', '/polar/session/logs/agent']
      await using sandbox = await start({
        workdir: '/polar/session/workspace',
        folders,
        env: { SESSION: '/polar/session', LOGS: '/polar/session/logs/agent', OTHER: '/polar/sessions' },
        mounts: isolated() === undefined ? [{ source: dir, target: '/polar/harness', isReadOnly: true }] : [],
      })
      const script =
        'echo a > "$SESSION/a" && echo b > "$LOGS/b" && rm -rf "$SESSION/logs" && ls "$SESSION" && echo "$OTHER"'
      const { stdout, stderr } = await runScript(sandbox, script)
      expect(stderr).toBe('')
      expect(stdout.split('\n').filter((line) => line !== 'workspace')).toEqual(['a', '/polar/sessions', ''])
      if (isolated() !== undefined) return
      const renew =
        'rm -rf /polar/session/workspace && mkdir -p /polar/session/workspace && cd /polar/session/workspace && pwd'
      expect(await runScript(sandbox, renew)).toMatchObject({ stdout: '/polar/session/workspace\n', stderr: '' })
      expect(await runScript(sandbox, 'touch here && ls')).toMatchObject({ stdout: 'here\n' })
    })

    it('exec() connects real pipes, which scripts can open by path', async () => {
      expect(await runScript(shared, 'echo a > /dev/stderr; echo b | tee /dev/stderr')).toMatchObject({
        stdout: 'b\n',
        stderr: 'a\nb\n',
      })
    })

    it('exec() passes no file descriptor of the node to a command', async () => {
      const { stdout } = await runScript(shared, 'ls -l /proc/self/fd; true')
      const others = stdout.split('\n').filter((line) => Number(/ (\d+) -> /.exec(line)?.[1]) > 2)
      expect(others.filter((line) => !/ -> (\/dev\/null|\/proc\/\d+\/fd)$/.test(line))).toEqual([])
    })

    it('signal() signals the first process only', async () => {
      const execution = await shared.exec({
        command: ['bash', '-c', 'trap "echo got; exit 3" USR1; echo up; while :; do sleep 0.02; done'],
        leftovers: 'end',
        timeoutMs: 20_000,
      })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      await execution.signal('SIGUSR1')
      expect(await execution.result).toMatchObject({ exitCode: 3 })
      expect(await readText(execution.output('stdout'))).toBe('up\ngot\n')
      await execution.signal('SIGTERM')
    })

    it('exec() runs many commands concurrently', async () => {
      const all = await Promise.all(Array.from({ length: 20 }, (_, index) => runScript(shared, `echo ${index}`)))
      expect(all.map(({ stdout }) => stdout)).toEqual(all.map((_, index) => `${index}\n`))
    })

    it('exec() stores output up to its limit, and counts further output without using memory', async () => {
      const size = 1024 * MB
      const before = process.memoryUsage().rss
      let highest = 0
      const watch = setInterval(() => (highest = Math.max(highest, process.memoryUsage().rss)), 20)
      const ran = await runScript(shared, `head -c ${size} /dev/zero`, { outputBytes: 2 * MB, timeoutMs: 280_000 })
      clearInterval(watch)
      expect(ran).toMatchObject({ exitCode: 0, stdoutBytes: size })
      expect(ran.stdout.length).toBe(2 * MB)
      // Garbage collection is late, but most of the output was never in memory at once.
      expect(highest - before).toBeLessThan(size / 4)
    })

    // --- ending -------------------------------------------------------------------------------------------------------

    it('exec() ends at its time limit with all descendants, however they hide', async () => {
      const token = toToken()
      const began = performance.now()
      const ran = await runScript(shared, hostile(token), { timeoutMs: 500 })
      expect(ran).toMatchObject({ isTimedOut: true, exitCode: null, signal: 'SIGKILL', stdout: 'up\n' })
      expect(performance.now() - began).toBeLessThan(PROMPTLY_MS)
      expect(processesWith(token)).toEqual([])
    })

    it('kill() ends all processes of the command', async () => {
      const token = toToken()
      const execution = await shared.exec({ command: ['bash', '-c', hostile(token)], leftovers: 'keep' })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      await until(() => processesWith(token).length >= 3)
      const began = performance.now()
      await execution.kill()
      expect(performance.now() - began).toBeLessThan(PROMPTLY_MS)
      expect(processesWith(token)).toEqual([])
      expect(await execution.result).toMatchObject({ isTimedOut: false, signal: 'SIGKILL' })
      await execution.kill()
    })

    it('leftovers end with their command', async () => {
      const token = toToken()
      const ran = await runScript(shared, `setsid bash -c 'while :; do sleep 0.05; done' ${token} & exit 4`)
      expect(ran.exitCode).toBe(4)
      expect(processesWith(token)).toEqual([])
    })

    it('leftovers end with their command, even with another parent', async () => {
      const token = toToken()
      const clone = process.arch === 'arm64' ? 220 : 56
      const adopted = `perl -e 'my $pid = syscall(${clone}, 0x8000 | 17, 0, 0, 0, 0); exec "bash", "-c", "while :; do sleep 0.05; done", "${token}" if $pid == 0; exit 6'`
      for (let round = 0; round < 5; round += 1) {
        // Run by the command itself, by its child, and by an orphan.
        for (const script of [`exec ${adopted}`, `${adopted}; exit 6`, `(setsid ${adopted} &); exit 6`])
          expect(await runScript(shared, script), script).toMatchObject({ exitCode: 6 })
        expect(processesWith(token)).toEqual([])
      }
    })

    it('a command finds no process of earlier commands', async () => {
      const list = 'set -- /proc/[0-9]*; echo $#'
      await using sandbox = await start()
      const countProcesses = async (): Promise<number> => Number((await runScript(sandbox, list)).stdout)
      // Processes of a daemon may end a moment after the sandbox.
      const first = await countProcesses()
      for (let round = 0; round < 10; round += 1) {
        await runScript(sandbox, round % 3 === 0 ? '(setsid sleep 30 &); true' : 'true')
        if (isolatedProcesses() === undefined)
          await expect.poll(countProcesses, { timeout: 5000 }).toBeLessThanOrEqual(first)
      }
    })

    it('kept leftovers survive the command, do not delay its result, and end with the sandbox', async () => {
      await using sandbox = await start()
      const token = toToken()
      const ran = await runScript(sandbox, `setsid bash -c 'while :; do echo x; sleep 0.05; done' ${token} & exit 5`, {
        leftovers: 'keep',
      })
      expect(ran.exitCode).toBe(5)
      await sleep(300)
      expect(processesWith(token).length).toBeGreaterThan(0)
      await sandbox.stop()
      expect(processesWith(token)).toEqual([])
    })

    it('orphans of a command are reaped', async () => {
      await using sandbox = await start()
      // Each forks twice and survives its parent; its last action is to write a line.
      const fork = 'for i in $(seq 200); do (setsid sh -c "echo >> ended" & ) ; done'
      const wait = 'while [ "$(wc -l < ended)" -lt 200 ]; do sleep 0.02; done'
      const zombies = 'cat /proc/[0-9]*/stat 2>/dev/null | sed "s/.*) //" | grep -c "^Z"'
      const settle = `for i in $(seq 50); do n=$(${zombies}); [ "$n" = 0 ] && break; sleep 0.02; done; echo $n`
      for (const leftovers of ['end', 'keep'] as const) {
        const ran = await runScript(sandbox, `: > ended; ${fork}; ${wait}; ${settle}`, { leftovers })
        expect(ran).toMatchObject({ stdout: '0\n', exitCode: 0 })
      }
    })

    it('stop() ends all processes promptly, also if called several times', async () => {
      const sandbox = await start()
      const token = toToken()
      const execution = await sandbox.exec({ command: ['bash', '-c', hostile(token)], leftovers: 'keep' })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      const began = performance.now()
      await Promise.all([sandbox.stop(), sandbox.stop(), sandbox[Symbol.asyncDispose]()])
      expect(performance.now() - began).toBeLessThan(PROMPTLY_MS)
      expect(processesWith(token)).toEqual([])
      expect(await execution.result).toMatchObject({ signal: 'SIGKILL' })
      await sandbox.stop()
      await expectFailure(sandbox.exec({ command: ['true'], leftovers: 'end' }), 'runtime.gone')
      expect((await runtime.list()).map(({ id }) => id)).not.toContain(sandbox.id)
    })

    it('start() leaves nothing behind when it is aborted', async () => {
      await sleep(500)
      const before = traces(dir)
      for (const delay of [0, 5, 20, 60, 120]) {
        const controller = new AbortController()
        const spec = toSpec({ socket: { port: 18_181, accept: (socket) => socket.destroy() } })
        const starting = runtime.start(spec, controller.signal).then(
          (sandbox) => sandbox.stop(),
          () => undefined,
        )
        await sleep(delay)
        controller.abort()
        await starting
      }
      await until(() => traces(dir).every((trace) => before.includes(trace)))
    })

    it('start() rejects an id in use and an invalid id', async () => {
      await expectFailure(start({ id: shared.id }), 'runtime.start-failed')
      await expectFailure(start({ id: '../x' }), 'runtime.unsupported')
      expect(await runScript(shared, 'echo still here')).toMatchObject({ stdout: 'still here\n' })
    })

    it('start() rejects a network policy that it cannot enforce', async () => {
      for (const network of [{ kind: 'none' }, { kind: 'allow', hosts: ['example.com'] }] as const) {
        if (runtime.capabilities.networks.includes(network.kind)) continue
        const spec = toSpec({ network })
        await expectFailure(runtime.start(spec, AbortSignal.timeout(30_000)), 'runtime.unsupported')
        expect((await runtime.list()).map(({ id }) => id)).not.toContain(spec.id)
      }
    })

    // --- files --------------------------------------------------------------------------------------------------------

    it('upload() and download() preserve modes, links, names and empty directories', async () => {
      const tree = join(dir, 'tree ü')
      await mkdir(join(tree, 'empty'), { recursive: true })
      await mkdir(join(tree, 'déép', '日本語'), { recursive: true })
      await writeFile(join(tree, 'déép', '日本語', '-n * $(x)\n.txt'), 'content')
      await writeFile(join(tree, 'run.sh'), '#!/bin/sh\necho ran')
      await chmod(join(tree, 'run.sh'), 0o751)
      await writeFile(join(tree, 'big'), randomBytes(2 * MB))
      await writeFile(join(tree, `${'long'.repeat(50)}.txt`), 'x')
      await symlink('run.sh', join(tree, 'link'))
      await symlink('/etc/passwd', join(tree, 'away'))
      await shared.upload(tree, 'up/tree', AbortSignal.timeout(20_000))
      expect(await runScript(shared, './up/tree/link && readlink up/tree/away')).toMatchObject({
        stdout: 'ran\n/etc/passwd\n',
      })
      await shared.download('up/tree', join(dir, 'down'), LIMITS, AbortSignal.timeout(20_000))
      expect(await listing(join(dir, 'down'))).toEqual(await listing(tree))
      await shared.upload(join(tree, 'run.sh'), 'up/one.sh', AbortSignal.timeout(20_000))
      await shared.download(`${shared.workdir}/up/one.sh`, join(dir, 'one.sh'), LIMITS, AbortSignal.timeout(20_000))
      expect((await stat(join(dir, 'one.sh'))).mode & 0o777).toBe(0o751)
    })

    it('writeFile() and readFile() handle modes, size limits and missing files', async () => {
      await shared.writeFile('notes/a b.txt', 'grüße', { mode: 0o600 })
      expect(String(await shared.readFile('notes/a b.txt', { maxBytes: 100 }))).toBe('grüße')
      expect(await runScript(shared, 'stat -c %a "notes/a b.txt"')).toMatchObject({ stdout: '600\n' })
      const bytes = randomBytes(300_000)
      await shared.writeFile('bytes', bytes)
      expect((await shared.readFile('bytes', { maxBytes: 300_000 })).equals(bytes)).toBe(true)
      await expectFailure(shared.readFile('bytes', { maxBytes: 299_999 }), 'workspace.too-large')
      await expectFailure(shared.readFile('nothing', { maxBytes: 10 }), 'workspace.file-missing')
      await expectFailure(shared.readFile('/dev/zero', { maxBytes: 10 }), 'workspace.unsafe-file')
      await expectFailure(download('nothing', LIMITS), 'workspace.file-missing')
    })

    async function download(source: string, limits: typeof LIMITS): Promise<string> {
      const target = join(dir, `copy-${(count += 1)}`)
      try {
        await shared.download(source, target, limits, AbortSignal.timeout(20_000))
      } catch (error) {
        // A failure leaves no file that could be mistaken for a copy.
        await expect(lstat(target)).rejects.toThrow('ENOENT')
        throw error
      }
      return target
    }

    it('download() copies links and never follows them', async () => {
      const secret = join(dir, 'secret')
      await writeFile(secret, 'host secret')
      await runScript(
        shared,
        `rm -rf h && mkdir h && ln -s ${secret} h/a && ln -s / h/root && ln -s ../../../.. h/up && ln -s ${dir} l`,
      )
      const copy = await download('h', LIMITS)
      expect(await readlink(join(copy, 'a'))).toBe(secret)
      expect((await readdir(copy)).sort()).toEqual(['a', 'root', 'up'])
      const link = await download('l', LIMITS)
      expect((await lstat(link)).isSymbolicLink()).toBe(true)
    })

    it('download() keeps hard links within a tree, and drops setuid bits', async () => {
      await runScript(
        shared,
        'rm -rf hl && mkdir hl && echo one > hl/a && ln hl/a hl/b && cp /bin/true hl/s && chmod 6755 hl/s',
      )
      const copy = await download('hl', LIMITS)
      expect(await readFile(join(copy, 'b'), 'utf8')).toBe('one\n')
      expect((await stat(join(copy, 's'))).mode & 0o7777).toBe(0o755)
    })

    it('download() quickly rejects special files and trees over the limits', async () => {
      await runScript(
        shared,
        'mkdir -p f && mkfifo f/pipe; mkdir -p huge && truncate -s 1T huge/sparse; mkdir -p many && cd many && seq 20000 | xargs touch',
      )
      await expectFailure(download('f', LIMITS), 'workspace.unsafe-file')
      const began = performance.now()
      await expectFailure(download('huge', LIMITS), 'workspace.too-large')
      await expectFailure(download('many', { ...LIMITS, maxFiles: 1000 }), 'workspace.too-large')
      expect(performance.now() - began).toBeLessThan(10_000)
      await runScript(shared, 'rm -rf f huge many')
    })

    it('download() overwrites no file, and ends when the signal is aborted', async () => {
      const target = join(dir, 'taken')
      await writeFile(target, 'mine')
      await expectFailure(shared.download('.', target, LIMITS, AbortSignal.timeout(5000)), 'runtime.copy-failed')
      expect(await readFile(target, 'utf8')).toBe('mine')
      await expect(shared.download('.', join(dir, 'never'), LIMITS, AbortSignal.abort())).rejects.toThrow(/abort/i)
    })

    when(isolated, 'files of the machine are inaccessible', async () => {
      const secret = join(dir, 'secret-file')
      await writeFile(secret, 'x', { mode: 0o644 })
      const paths = [
        secret,
        dir,
        join(dir, 'data'),
        '/etc/shadow',
        '/root/.bashrc',
        '/var/run/docker.sock',
        '/run/docker.sock',
      ]
      for (const path of [...paths, `/proc/${process.pid}/root`, `/proc/${process.pid}/environ`])
        expect(await runScript(shared, `cat ${path} || ls -A ${path}/`), path).toMatchObject({ stdout: '' })
      for (const path of ['/proc/sys/kernel/hostname', '/proc/sysrq-trigger'])
        expect((await runScript(shared, `echo x > ${path}`)).exitCode, path).not.toBe(0)
      // A sandbox with a user's own image may write there; the file is inside the sandbox.
      for (const path of ['/usr/polar-x', '/opt/polar-x']) {
        await runScript(shared, `echo x > ${path}`)
        expect(existsSync(path), path).toBe(false)
      }
      const passwd = await readFile('/etc/passwd', 'utf8')
      await runScript(shared, 'echo x >> /etc/passwd; rm -f /etc/passwd')
      expect(await readFile('/etc/passwd', 'utf8')).toBe(passwd)
      const { stdout } = await runScript(
        shared,
        'id -u; grep -E "^(CapPrm|CapEff|CapInh|CapAmb|NoNewPrivs)" /proc/self/status',
      )
      expect(stdout).toMatch(/^[1-9]\d*\n/)
      expect(stdout.match(/0000000000000000/g)).toHaveLength(4)
      expect(stdout).toMatch(/NoNewPrivs:\s1/)
      for (const script of ['mknod d b 8 0', 'mount -t tmpfs t /tmp', 'unshare -U true', 'chroot / true', 'dmesg'])
        expect((await runScript(shared, script)).exitCode, script).not.toBe(0)
    })

    when(
      isolated,
      'its processes are nobody of importance on the machine, and cannot take the sandbox down',
      async () => {
        const token = toToken()
        const execution = await shared.exec({
          command: ['bash', '-c', 'echo up; while :; do sleep 0.05; done', token],
          leftovers: 'end',
        })
        await execution.output('stdout')[Symbol.asyncIterator]().next()
        const owners = processesWith(token).map(
          (pid) => /^Uid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1],
        )
        expect(owners).not.toContain('0')
        await runScript(shared, 'kill -9 1; kill -9 -1')
        expect(await runScript(shared, 'echo here')).toMatchObject({ stdout: 'here\n' })
        await execution.kill()
      },
    )

    when(isolated, 'mounts appear at their targets, read-only unless writable', async () => {
      const [source, writable] = [join(dir, 'mount'), join(dir, 'mount-rw')]
      await mkdir(source)
      await mkdir(writable)
      await chmod(writable, 0o777)
      await writeFile(join(source, 'tool'), 'in a mount')
      await using sandbox = await start({
        mounts: [
          { source, target: '/opt-of-ours/bundle', isReadOnly: true },
          { source: writable, target: '/data', isReadOnly: false },
          { source: join(source, 'tool'), target: '/single/tool', isReadOnly: true },
        ],
      })
      expect(await runScript(sandbox, 'cat /opt-of-ours/bundle/tool /single/tool')).toMatchObject({
        stdout: 'in a mountin a mount',
      })
      expect((await runScript(sandbox, 'touch /opt-of-ours/bundle/x || echo > /single/tool')).exitCode).not.toBe(0)
      expect(await runScript(sandbox, 'echo back > /data/x')).toMatchObject({ exitCode: 0 })
      expect(await readFile(join(writable, 'x'), 'utf8')).toBe('back\n')
      await sandbox.stop()
      expect(await readdir(source)).toEqual(['tool'])
    })

    // --- limits -------------------------------------------------------------------------------------------------------

    when(limited('memoryMb'), 'memory is limited, and exceeding the limit is reported', async () => {
      await using sandbox = await start({ limits: { memoryMb: 64 } })
      // Without a memory control group, the process is killed only after it has allocated the memory.
      const ran = await runScript(sandbox, 'exec perl -e \'$x = "x" x (200 * 1024 * 1024); sleep 25; print length $x\'')
      expect(ran).toMatchObject({ stdout: '', isOutOfMemory: true })
      expect(ran.exitCode).not.toBe(0)
      expect(await runScript(sandbox, 'echo ok')).toMatchObject({ stdout: 'ok\n', isOutOfMemory: false })
    })

    when(
      () => isolated() ?? limited('memoryMb')(),
      'files in memory count as memory, or have a limit of their own',
      async () => {
        const diskMb = limited('diskMb')() === undefined ? { diskMb: 256 } : {}
        await using sandbox = await start({ limits: { memoryMb: 64, ...diskMb } })
        const fill = 'head -c 200M /dev/zero > /dev/shm/big || exit 9; sleep 25'
        expect((await runScript(sandbox, fill)).exitCode).not.toBe(0)
      },
    )

    it('a command is the first choice of the out-of-memory killer', async () => {
      expect(await runScript(shared, 'cat /proc/self/oom_score_adj')).toMatchObject({ stdout: '1000\n' })
      expect(Number(readFileSync('/proc/self/oom_score_adj', 'utf8'))).toBeLessThan(1000)
    })

    when(isolatedProcesses, 'a command cannot lower its out-of-memory score', async () => {
      const lower = 'for score in 0 -1000 999; do echo $score > /proc/$$/oom_score_adj; done 2>/dev/null'
      expect(await runScript(shared, `${lower}; cat /proc/self/oom_score_adj`)).toMatchObject({ stdout: '1000\n' })
    })

    when(
      isolatedProcesses,
      'a sandbox that uses up what the kernel counts per user leaves enough to another',
      async () => {
        await using greedy = await start({ limits: limited('pids')() === undefined ? { pids: 60 } : {} })
        await using modest = await start()
        const taken = await greedy.exec({ command: ['perl', '-e', TAKE_ALL, '1000000'], leftovers: 'end' })
        const first = await taken.output('stdout')[Symbol.asyncIterator]().next()
        expect(String(first.value)).toMatch(/^inotify [1-9]\d*, signals [1-9]\d*\n$/)
        // The limit was reached: the same sandbox gets no more.
        expect(await runCommand(greedy, { command: ['perl', '-e', TAKE_ALL, '2'] })).toMatchObject({
          stdout: 'inotify 0, signals 0\n',
        })
        expect(await runCommand(modest, { command: ['perl', '-e', TAKE_ALL, '2'] })).toMatchObject({
          stdout: 'inotify 2, signals 2\n',
        })
        await taken.kill()
      },
    )

    when(limited('pids'), 'a fork bomb stays within its number of processes', async () => {
      await using sandbox = await start({ limits: { pids: 40 } })
      const token = toToken()
      const bomb = `bash -c 'b() { sleep 5 & b & }; for i in $(seq 200); do b 2>/dev/null; done; wait' ${token}`
      const execution = await sandbox.exec({
        command: ['bash', '-c', bomb],
        leftovers: 'end',
        timeoutMs: 2000,
        outputBytes: 10_000,
      })
      let highest = 0
      const watch = setInterval(() => (highest = Math.max(highest, processesWith(token).length)), 50)
      const result = await execution.result
      clearInterval(watch)
      expect(highest).toBeLessThanOrEqual(45)
      expect(result.isTimedOut).toBe(true)
      expect(processesWith(token)).toEqual([])
      expect(await runScript(sandbox, 'echo ok')).toMatchObject({ stdout: 'ok\n' })
    })

    when(limited('cpus'), 'cpu time is limited', async () => {
      await using sandbox = await start({ limits: { cpus: 0.2 } })
      await runScript(sandbox, 'timeout 1.5 bash -c "while :; do :; done"')
      const { cpuMs } = await sandbox.stats()
      expect(cpuMs).toBeLessThan(900)
    })

    when(limited('diskMb'), 'written data is limited in all folders', async () => {
      await using sandbox = await start({ limits: { diskMb: 16 } })
      for (const path of ['big', '/tmp/big', '/dev/shm/big', '/var/tmp/big']) {
        const ran = await runScript(
          sandbox,
          `head -c 64M /dev/zero > ${path}; s=$?; stat -c %s ${path}; rm -f ${path}; exit $s`,
        )
        expect(ran.exitCode, path).not.toBe(0)
        expect(Number(ran.stdout), path).toBeLessThanOrEqual(16 * MB)
      }
      const large = join(dir, 'large')
      await writeFile(large, Buffer.alloc(32 * MB))
      await expectFailure(sandbox.upload(large, 'large', AbortSignal.timeout(20_000)), 'runtime.out-of-disk')
    })

    // --- network ------------------------------------------------------------------------------------------------------

    when(offline, 'only the loopback interface is reachable', async () => {
      const accepted: Socket[] = []
      const server = createServer((socket) => accepted.push(socket.on('error', () => {})))
      await once(server.listen(0, '127.0.0.1'), 'listening')
      const { port } = server.address() as AddressInfo
      try {
        expect(await runScript(shared, tryConnect('127.0.0.1', port))).toMatchObject({ stdout: 'no\n' })
        for (const [host, other] of [
          ['169.254.169.254', 80],
          ['10.0.2.2', port],
          ['1.1.1.1', 53],
          ['[::1]', port],
        ] as const)
          expect(await runScript(shared, tryConnect(host, other)), host).toMatchObject({ stdout: 'no\n' })
        expect(await runScript(shared, 'cat /proc/net/dev | tail -n +3 | cut -d: -f1')).toMatchObject({
          stdout: expect.stringMatching(/^\s*lo\n$/),
        })
        expect(accepted).toEqual([])
      } finally {
        server.close()
      }
    })

    async function withDoor(work: (sandbox: Sandbox, http: HttpServer) => Promise<void>): Promise<void> {
      const http = createHttpServer((request, response) => {
        if (request.url === '/slow') {
          response.write('first\n')
          setTimeout(() => response.end('second\n'), 300)
        } else response.end(`you asked for ${request.url}`)
      })
      const accept = (socket: Socket) => void http.emit('connection', socket)
      await using sandbox = await start({ socket: { port: 18_080, accept } })
      await work(sandbox, http)
      http.closeAllConnections()
    }

    it('the socket carries requests and streams concurrently', async () => {
      await withDoor(async (sandbox) => {
        const port = sandbox.socketPort!
        expect((await runScript(sandbox, get(port, '/x'))).stdout).toContain('you asked for /x')
        const execution = await sandbox.exec({ command: ['bash', '-c', get(port, '/slow')], leftovers: 'end' })
        const times: number[] = []
        for await (const chunk of execution.output('stdout'))
          if (/first|second/.test(String(chunk))) times.push(performance.now())
        expect(times.at(-1)! - times[0]!).toBeGreaterThan(150)
        const many = await runScript(sandbox, `for i in $(seq 20); do (${get(port, '/$i')}) & done; wait`)
        expect(many.stdout.match(/you asked for/g)).toHaveLength(20)
      })
    })

    it('a connection of the socket can be half-closed', async () => {
      const accept = (socket: Socket) => {
        let received = 0
        socket.on('data', (chunk: Buffer) => (received += chunk.length))
        socket.once('end', () => setTimeout(() => socket.end(`got ${received}`), 100))
      }
      await using sandbox = await start({ socket: { port: 18_080, accept } })
      const script = `use IO::Socket::INET; $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => ${sandbox.socketPort}) or die; print $s "x" x 100000; $s->flush; shutdown($s, 1); print <$s>`
      expect(await runCommand(sandbox, { command: ['perl', '-e', script] })).toMatchObject({ stdout: 'got 100000' })
    })

    when(offline, 'the socket is reachable on one port of one sandbox only', async () => {
      await withDoor(async (sandbox) => {
        expect(await runScript(sandbox, tryConnect('127.0.0.1', 18_081))).toMatchObject({ stdout: 'no\n' })
        expect(await runScript(shared, tryConnect('127.0.0.1', 18_080))).toMatchObject({ stdout: 'no\n' })
        const bind = `use IO::Socket::INET; exit(IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 18080, Listen => 1, ReuseAddr => 1, ReusePort => 1) ? 0 : 9)`
        expect(await runCommand(sandbox, { command: ['perl', '-e', bind] })).toMatchObject({ exitCode: 9 })
      })
    })

    when(
      () => (runtime.capabilities.networks.includes('allow') ? undefined : 'to allow some hosts'),
      'hosts that are not allowed, and addresses of this machine, are refused',
      async () => {
        await using sandbox = await start({ network: { kind: 'allow', hosts: ['localhost', '169.254.169.254'] } })
        const ask = (url: string) =>
          `p=\${HTTP_PROXY#http://}; exec 3<>/dev/tcp/\${p%:*}/\${p#*:}; printf 'CONNECT ${url} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; head -n 1 <&3`
        for (const target of ['localhost:80', '169.254.169.254:80', 'example.com:443', '127.0.0.1:80'])
          expect((await runScript(sandbox, ask(target))).stdout, target).toContain('403')
        expect(await runScript(sandbox, tryConnect('1.1.1.1', 53))).toMatchObject({ stdout: 'no\n' })
      },
    )

    // --- upkeep -------------------------------------------------------------------------------------------------------

    it('list() returns labels, start and lease, and renew() extends the lease', async () => {
      const leaseUntil = Date.now() + 5000
      await using sandbox = await start({ labels: { session: 's-1' }, leaseUntil })
      const find = async () => (await runtime.list()).find(({ id }) => id === sandbox.id)
      expect(await find()).toMatchObject({ labels: { session: 's-1' }, leaseUntil })
      expect(Math.abs((await find())!.startedAt - Date.now())).toBeLessThan(30_000)
      await sandbox.renew(leaseUntil + 60_000)
      expect(await find()).toMatchObject({ leaseUntil: leaseUntil + 60_000 })
    })

    it('remove() removes everything of a sandbox whose process was killed', async () => {
      await sleep(500)
      const before = traces(dir)
      const token = toToken()
      const id = `orphan-${process.pid}`
      const owner = spawn(
        process.execPath,
        ['--input-type=module', '-e', contract.orphanScript, hostile(token), join(dir, 'data'), id],
        { stdio: ['ignore', 'pipe', 'inherit'] },
      )
      await once(owner.stdout, 'data')
      owner.kill('SIGKILL')
      await once(owner, 'exit')
      expect((await runtime.list()).map((info) => info.id)).toContain(id)
      await runtime.remove(id)
      await runtime.remove(id)
      expect((await runtime.list()).map((info) => info.id)).not.toContain(id)
      await until(() => processesWith(token).length === 0)
      await until(() => traces(dir).every((trace) => before.includes(trace)))
    })

    it('remove() removes a running sandbox', async () => {
      const sandbox = await start()
      const token = toToken()
      const execution = await sandbox.exec({ command: ['bash', '-c', hostile(token)], leftovers: 'keep' })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      await createRuntime(join(dir, 'data')).remove(sandbox.id)
      await until(() => processesWith(token).length === 0)
      await execution.result
      await sandbox.stop()
    })

    it('stats() returns the resource usage', async () => {
      await using sandbox = await start()
      await runScript(sandbox, 'head -c 3M /dev/urandom > file')
      const running = await sandbox.exec({ command: ['bash', '-c', 'echo up; sleep 30'], leftovers: 'end' })
      await running.output('stdout')[Symbol.asyncIterator]().next()
      const stats = await sandbox.stats()
      await running.kill()
      expect(stats.diskBytes).toBeGreaterThan(3 * MB - 1)
      expect(stats.diskBytes).toBeLessThan(10 * MB)
      if (runtime.capabilities.limits.includes('cpus')) expect(stats.cpuMs).toBeGreaterThan(0)
      if (runtime.capabilities.limits.includes('memoryMb')) expect(stats.memoryBytes).toBeGreaterThan(0)
    })

    it('freeze() ends all processes and keeps the files readable', async () => {
      await using sandbox = await start()
      const token = toToken()
      const execution = await sandbox.exec({
        command: ['bash', '-c', `echo kept > file; ${hostile(token)}`],
        leftovers: 'keep',
      })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      await sandbox.freeze()
      await sandbox.freeze()
      expect(processesWith(token)).toEqual([])
      expect(await execution.result).toMatchObject({ signal: 'SIGKILL' })
      expect(String(await sandbox.readFile('file', { maxBytes: 100 }))).toBe('kept\n')
      await sandbox.download('file', join(dir, 'frozen'), LIMITS, AbortSignal.timeout(10_000))
      await expectFailure(sandbox.exec({ command: ['true'], leftovers: 'end' }), 'runtime.gone')
    })

    when(
      snapshots,
      "a sandbox can start from another one's snapshot, and neither sees the other's changes",
      async () => {
        await using first = await start()
        await runScript(
          first,
          'mkdir -p a && echo one > a/file && echo gone > gone && ln -s file a/link && chmod 700 a',
        )
        await first.snapshot(`snap-${process.pid}`)
        await runScript(first, 'echo changed > a/file')
        await using second = await start({ snapshot: `snap-${process.pid}` })
        expect(await runScript(second, 'cat a/link; stat -c %a a; rm gone; echo two > a/file; ls')).toMatchObject({
          stdout: 'one\n700\na\n',
        })
        await second.snapshot(`snap2-${process.pid}`)
        await using third = await start({ snapshot: `snap2-${process.pid}` })
        await using again = await start({ snapshot: `snap-${process.pid}`, limits: { diskMb: 32 } })
        expect(await runScript(third, 'cat a/file; ls')).toMatchObject({ stdout: 'two\na\n' })
        expect(await runScript(again, 'cat a/file; ls')).toMatchObject({ stdout: 'one\na\ngone\n' })
        await expectFailure(start({ snapshot: 'no-such' }), 'runtime.image-missing')
      },
    )
  })
}

function toToken(): string {
  return `token${randomBytes(8).toString('hex')}`
}

/** Everything that a sandbox could leave on the machine: folders, mounts, control groups, idle processes. */
function traces(dir: string): string[] {
  const list = (folder: string) => {
    try {
      return readdirSync(folder).filter((entry) => !entry.startsWith('base-'))
    } catch {
      return []
    }
  }
  const groups = readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .filter((line) => / cgroup2? /.test(line))
    .flatMap((line) => list(line.split(' ')[1]!).filter((entry) => entry.startsWith('polar-')))
    // These tests may run twice on this machine at the same time.
    .filter((entry) => entry.split('-').includes(String(process.pid)))
  const mounts = readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .filter((line) => line.includes(dir))
  return [
    ...list(join(dir, 'data', 'sandboxes')),
    ...groups,
    ...mounts,
    ...processesWith('sleep\0')
      // Only our own sandboxes count: these have our folder in their environment or among their mounts.
      .filter((pid) =>
        ['environ', 'mountinfo'].some((file) => readIfAllowed(`/proc/${pid}/${file}`).includes(basename(dir))),
      )
      .map(String),
  ]
}

function readIfAllowed(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}

async function expectFailure(work: Promise<unknown>, code: FailureCode): Promise<void> {
  const error = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(RolloutError)
  expect((error as RolloutError).code).toBe(code)
}

async function until(isSo: () => boolean): Promise<void> {
  const deadline = performance.now() + 60_000
  while (!isSo()) {
    if (performance.now() > deadline) throw new Error(`still not so after 60 s: ${isSo.toString()}`)
    await sleep(20)
  }
}

/** Returns everything about a tree except times and owners. */
async function listing(root: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {}
  for (const entry of await readdir(root, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name)
    const stats = await lstat(path)
    const content = stats.isFile() ? (await readFile(path)).toString('base64') : ''
    const target = stats.isSymbolicLink() ? await readlink(path) : ''
    const mode = stats.isSymbolicLink() ? '' : (stats.mode & 0o7777).toString(8)
    found[path.slice(root.length)] = [stats.isDirectory(), mode, target, content].join(' ')
  }
  return found
}

function splitPair(pair: string): [string, string] {
  return [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]
}

function tryConnect(host: string, port: number): string {
  return `timeout 2 bash -c 'exec 3<>/dev/tcp/${host.replaceAll(/[[\]]/g, '')}/${port}' 2>/dev/null && echo yes || echo no`
}

function get(port: number, path: string): string {
  return `exec 3<>/dev/tcp/127.0.0.1/${port}; printf "GET ${path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" >&3; cat <&3`
}
