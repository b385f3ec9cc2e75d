import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createReadStream, readdirSync, readFileSync } from 'node:fs'
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
  writeFile,
} from 'node:fs/promises'
import { createServer, type Socket } from 'node:net'
import { hostname, networkInterfaces, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import type { ExecSpec, Runtime, RuntimeCheck, Sandbox, SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import {
  processesWith,
  runScript,
  toProbeSpec,
  type Ran,
} from '../../src/node/sandbox/runtimes/sandbox-probe.contract.ts'
import { extractTar } from '../../src/node/sandbox/linux/files/extract-tar.ts'
import { Stack } from './stack.ts'

export interface Prison {
  name: string
  create(dir: string): Runtime
  /** Image of the sandboxes, if the runtime needs one. */
  image?: string
  /** Source of an ES module that does the same as `create`: defines `runtime` from `dir`. */
  createScript: string
  /** User id of its processes on this machine, if known. */
  uid?: number
}

const MB = 1024 * 1024
const LIMITS = { maxBytes: 100 * MB, maxFiles: 10_000 }
/** A successful attempt takes minutes; a failed attempt may take long on a busy machine. */
const SOON_MS = 150_000
const SOCKET_PORT = 18_080
const REFUSED = /^(EPERM|EACCES|ENOSYS|EINVAL|ENOENT|ENOSPC|ESRCH|EUSERS|EROFS|ENODEV|ENOTBLK|EBADF|EFAULT)$/

/** Numbers of system calls that no common program makes. */
const CALLS =
  process.arch === 'arm64'
    ? { io_setup: 0, io_uring_setup: 425, userfaultfd: 282, request_key: 218, ptrace: 117, add_key: 217, keyctl: 219, mount: 40, umount2: 39, pivot_root: 41, unshare: 97, setns: 268, sethostname: 161, settimeofday: 170, mknodat: 33, chroot: 51, init_module: 105, bpf: 280, reboot: 142, swapon: 224, open_by_handle_at: 265, perf_event_open: 241, kexec_load: 104, fsopen: 430, open_tree: 428, shmget: 194, process_vm_readv: 270 } // prettier-ignore
    : { io_setup: 206, io_uring_setup: 425, userfaultfd: 323, request_key: 249, ptrace: 101, add_key: 248, keyctl: 250, mount: 165, umount2: 166, pivot_root: 155, unshare: 272, setns: 308, sethostname: 170, settimeofday: 164, mknodat: 259, chroot: 161, init_module: 175, bpf: 321, reboot: 169, swapon: 167, open_by_handle_at: 304, perf_event_open: 298, kexec_load: 246, fsopen: 430, open_tree: 428, shmget: 29, process_vm_readv: 310 } // prettier-ignore

/** Returns a Perl command that makes a system call and prints `ok` or the error name. */
function call(name: keyof typeof CALLS, ...args: (number | string)[]): string {
  const list = args.map((arg) => (typeof arg === 'number' ? String(arg) : `my $s${args.indexOf(arg)} = "${arg}"`))
  return `perl -MErrno -e 'my $r = syscall(${[CALLS[name], ...list].join(', ')}); print $r == -1 ? (grep { $!{$_} } keys %!)[0] : "ok"'`
}

/**
 * Runs the attempts of a hostile program for real, and checks their effects from outside. The machine is as careless as
 * possible: every user can read its secrets, and a process of the same user has a secret in its environment.
 */
export function describeEscapes(prison: Prison): void {
  describe(`escapes from ${prison.name}`, { timeout: 60_000 }, () => {
    let dir: string
    /** A folder and a file in it that every user can read and write. */
    let open: string
    let secretFile: string
    let secret: string
    let runtime: Runtime
    let checked: RuntimeCheck
    let shared: Sandbox
    let stack: Stack
    let victim: ChildProcess
    /** Connections to the socket of another session. */
    const strangers: Socket[] = []

    beforeAll(async () => {
      dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-escape-'))
      await chmod(dir, 0o755)
      open = join(dir, 'open')
      secretFile = join(open, 'secret')
      secret = `secret-${randomBytes(12).toString('hex')}`
      await mkdir(open)
      await writeFile(secretFile, secret)
      await chmod(open, 0o777)
      await chmod(secretFile, 0o666)
      runtime = prison.create(join(dir, 'data'))
      checked = await runtime.check(AbortSignal.timeout(30_000))
      if (!checked.isUsable) return console.log(`${prison.name} cannot run here: ${checked.reason}`)
      const user = prison.uid === undefined ? {} : { uid: prison.uid, gid: prison.uid }
      victim = spawn('sleep', ['600'], { env: { PATH: process.env['PATH'], KEY: secret }, stdio: 'ignore', ...user })
      await once(victim, 'spawn')
      stack = await Stack.start({ script: 'default: { text: "well" }' })
      shared = await start({
        limits: { pids: 200 },
        socket: { port: SOCKET_PORT, accept: (socket) => stack.gateway.accept(stack.session.id, socket) },
      })
    })
    afterEach(async () => {
      if (!checked.isUsable) return
      expect(await readFile(secretFile, 'utf8')).toBe(secret)
      expect(await readdir(open)).toEqual(['secret'])
      expect(victim.exitCode ?? victim.signalCode).toBe(null)
    })
    afterAll(async () => {
      await shared?.stop()
      await stack?.[Symbol.asyncDispose]()
      victim?.kill('SIGKILL')
      await runtime[Symbol.asyncDispose]()
      if (checked.isUsable) expect(await runtime.list()).toEqual([])
      await rm(dir, { recursive: true, force: true })
    })

    const toSpec = (more: Partial<SandboxSpec> = {}): SandboxSpec =>
      toProbeSpec('escape', { ...(prison.image !== undefined && { image: prison.image }), ...more })
    const start = (more: Partial<SandboxSpec> = {}): Promise<Sandbox> =>
      runtime.start(toSpec(more), AbortSignal.timeout(30_000))
    const attempt = (title: string, work: (context: TestContext) => Promise<void>): void =>
      test(title, async (context) => {
        if (!checked.isUsable) return context.skip(checked.reason)
        await work(context)
      })
    /** Runs a script and checks that its output does not contain the secret. */
    async function run(script: string, sandbox: Sandbox = shared, more: Partial<ExecSpec> = {}): Promise<Ran> {
      const ran = await runScript(sandbox, script, more)
      expect(ran.stdout + ran.stderr).not.toContain(secret)
      return ran
    }
    const download = (source: string, target: string, limits = LIMITS, sandbox = shared): Promise<void> =>
      sandbox.download(source, join(dir, target), limits, AbortSignal.timeout(240_000))
    const read = (path: string, sandbox = shared): Promise<string> =>
      sandbox.readFile(path, { maxBytes: MB }).then(String, () => 'refused')

    // --- files --------------------------------------------------------------------------------------------------------

    attempt('reading files of the machine by their paths', async () => {
      await run(`cat ${secretFile} /etc/shadow; echo x > ${secretFile}; echo x > ${open}/new; rm -rf ${open}`)
      await run(
        `find / -xdev -name secret -exec cat {} + 2>/dev/null; grep -rs secret- /root /home /tmp /run /mnt /srv`,
      )
      expect((await run(`head -c 100 /etc/shadow`)).stdout).not.toContain('root:')
    })

    attempt('links in the workdir that commands and our copying follow', async () => {
      await run(
        `ln -sfn ${secretFile} file; ln -sfn ${open} folder; ln -sfn / root; ln -sfn ../../../../../..${open} up`,
      )
      await run(
        `cat file folder/secret root${secretFile} up/secret; echo x > file; echo x > folder/new; echo x > up/new`,
      )
      for (const path of ['file', 'folder/secret', `root${secretFile}`, 'up/secret'])
        expect(await read(path), path).not.toContain(secret)
      for (const path of ['file', 'folder/new', `root${open}/new`, 'up/new']) {
        await shared.writeFile(path, 'x').catch(() => {})
        await shared.upload(new URL(import.meta.url).pathname, path, AbortSignal.timeout(10_000)).catch(() => {})
      }
      await run(`rm -rf tree; mkdir tree; ln -s ${secretFile} tree/file; ln -s ${open} tree/folder`)
      await download('tree', 'links')
      expect((await lstat(join(dir, 'links', 'file'))).isSymbolicLink()).toBe(true)
      expect((await lstat(join(dir, 'links', 'folder'))).isSymbolicLink()).toBe(true)
      await rm(join(dir, 'links'), { recursive: true })
    })

    attempt('a directory that becomes a link while it is copied', async () => {
      const swap = `mkdir -p race/a; echo own > race/a/secret; while :; do mv race/a race/b; ln -s ${open} race/a; rm race/a; mv race/b race/a; done`
      const racing = await shared.exec({ command: ['bash', '-c', swap], leftovers: 'end', timeoutMs: 20_000 })
      for (let round = 0; round < 15; round += 1) {
        await download('race', `race-${round}`).catch(() => {})
        expect(await contentsBelow(join(dir, `race-${round}`))).not.toContain(secret)
        expect(await read('race/a/secret')).not.toContain(secret)
        await shared.writeFile('race/a/new', 'x').catch(() => {})
        await rm(join(dir, `race-${round}`), { recursive: true, force: true })
      }
      await racing.kill()
    })

    attempt('archives with .. or absolute paths', async () => {
      const names = [`../../../../../..${open}/up`, `${open}/absolute`, `../new`, `link/through`]
      await run(`mkdir -p pack && cd pack && echo x > x && ln -sfn ${open} link
        for i in ${names.map((_, index) => index).join(' ')}; do :; done
        ${names.map((name, index) => `tar -cPf evil${index}.tar --transform='s|^x$|${name}|' link x`).join('\n')}
        tar -cPf evil4.tar --transform='flags=rSH;s|^x$|${open}/absolute|' x`)
      for (let index = 0; index <= names.length; index += 1) {
        const archive = join(dir, `evil${index}.tar`)
        await download(`pack/evil${index}.tar`, `evil${index}.tar`)
        await extractTar(createReadStream(archive), join(dir, 'unpacked'), LIMITS).then(
          () => expect(readdirSync(dir)).not.toContain('new'),
          () => {},
        )
        expect(await readdir(open)).toEqual(['secret'])
        await rm(join(dir, 'unpacked'), { recursive: true, force: true })
        await rm(archive)
        await run(`tar -xPf pack/evil${index}.tar`)
      }
      expect(readdirSync(dir)).not.toContain('new')
    })

    attempt('copying with its own programs and settings', async () => {
      await run(`mkdir -p ~/bin /tmp/bin; for d in ~/bin /tmp/bin /usr/local/bin /usr/local/sbin . ; do
        for p in tar sh cat head mkdir; do printf '#!/bin/sh\\necho planted >> /workspace/planted; exec cat ${secretFile}\\n' > $d/$p; chmod 755 $d/$p; done; done 2>/dev/null
        echo 'echo planted >> /workspace/planted' | tee ~/.bashrc ~/.profile ~/.shinit .bashrc > /dev/null; echo kept > plain; rm -f planted`)
      expect(await read('plain')).toBe('kept\n')
      await download('plain', 'plain')
      expect(await readFile(join(dir, 'plain'), 'utf8')).toBe('kept\n')
      await rm(join(dir, 'plain'))
      await shared.writeFile('plain', 'new')
      expect(await read('planted')).toBe('refused')
      await run('rm -rf tar sh cat head mkdir .bashrc ~/.bashrc ~/.profile')
    })

    attempt('hard links to files of the machine', async () => {
      // Where the node's user owns the files of the image, the attack overwrites programs of its own sandbox.
      await using sandbox = await start()
      await run(
        `mkdir -p hard; ln ${secretFile} hard/a; ln -L ${secretFile} hard/b; ln /proc/1/root${secretFile} hard/c`,
        sandbox,
      )
      await run(
        'ln /usr/bin/env hard/env && echo changed > hard/env; ln /etc/passwd hard/passwd && echo x >> hard/passwd',
        sandbox,
      )
      await download('hard', 'hard', LIMITS, sandbox)
      expect(await contentsBelow(join(dir, 'hard'))).not.toContain(secret)
      for (const name of await readdir(join(dir, 'hard'))) expect((await lstat(join(dir, 'hard', name))).nlink).toBe(1)
      expect(await readFile('/etc/passwd', 'utf8')).not.toMatch(/^x$/m)
      await rm(join(dir, 'hard'), { recursive: true })
    })

    attempt('our records of sandboxes, if a parent folder is mounted', async () => {
      const mounts = [{ source: dir, target: '/above', isReadOnly: false }]
      await using sandbox = await start({ mounts })
      await shared.writeFile('private', 'of another sandbox')
      const { stdout } = await run(
        'ls -A /above/data; find /above/data -type f; cat /above/data/*/*/* 2>/dev/null',
        sandbox,
      )
      expect(stdout).toMatch(/^(\/above\/data\n)?$/)
      expect((await run('cat /above/data/sandboxes/*/rw/upper/workspace/private', sandbox)).stdout).toBe('')
      expect(
        (await run('echo x > /above/data/x || rm -rf /above/data/* || mv /above/data /above/gone', sandbox)).exitCode,
      ).not.toBe(0)
      expect(await read('private')).toBe('of another sandbox')
    })

    attempt('creating devices', async () => {
      const { dev } = await stat('/')
      const [major, minor] = [(dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00)]
      await run(
        `mknod disk b ${major} ${minor}; mknod mem c 1 1; mknod kmsg c 1 11; head -c 512 disk mem kmsg /dev/mem /dev/kmsg`,
      )
      expect((await run(call('mknodat', -100, '/tmp/disk', 0o60_666, dev))).stdout).toMatch(REFUSED)
      expect((await run('find / -xdev -type b 2>/dev/null; find /dev -type b; ls disk mem /tmp/disk')).stdout).toBe('')
      const odd = await run(
        'exec 3<>/dev/tty && echo terminal; ls /dev/{vda,sda,nvme0n1,kvm,fuse,net/tun,loop-control}',
      )
      expect(odd.stdout).toBe('')
    })

    attempt('sparse files that are larger than any disk', async () => {
      await run('truncate -s 7E huge || truncate -s 8T huge; mkdir -p sparse; truncate -s 4T sparse/a; ls -ls huge')
      const began = performance.now()
      await expect(download('huge', 'huge')).rejects.toMatchObject({ code: 'workspace.too-large' })
      await expect(download('sparse', 'sparse')).rejects.toMatchObject({ code: 'workspace.too-large' })
      await expect(shared.readFile('huge', { maxBytes: MB })).rejects.toMatchObject({ code: 'workspace.too-large' })
      await expect(shared.readFile('/dev/zero', { maxBytes: MB })).rejects.toMatchObject({
        code: 'workspace.unsafe-file',
      })
      expect(performance.now() - began).toBeLessThan(SOON_MS)
      await run('rm -rf huge sparse')
    })

    attempt('writing more than its disk limit', async (context) => {
      if (!runtime.capabilities.limits.includes('diskMb')) return context.skip('it does not claim a limit of the disk')
      await using sandbox = await start({ limits: { diskMb: 16 } })
      const { stdout } = await run(
        'for p in a /tmp/b ~/c /dev/shm/d /var/tmp/e; do head -c 64M /dev/zero > $p; done 2>/dev/null; du -cmx a /tmp/b ~/c /dev/shm/d /var/tmp/e | tail -n 1',
        sandbox,
      )
      expect(Number.parseInt(stdout, 10)).toBeLessThanOrEqual(16)
    })

    attempt('a hundred thousand files', async () => {
      const sandbox = await start()
      await run('mkdir many && cd many && seq 100000 | xargs touch', sandbox)
      const began = performance.now()
      await expect(download('many', 'many', LIMITS, sandbox)).rejects.toMatchObject({ code: 'workspace.too-large' })
      await expect(stat(join(dir, 'many'))).rejects.toMatchObject({ code: 'ENOENT' })
      const stopped = performance.now()
      await sandbox.stop()
      expect(stopped - began).toBeLessThan(SOON_MS)
      expect(performance.now() - stopped).toBeLessThan(SOON_MS)
    })

    attempt('a tree deeper than the maximum path length', async () => {
      const sandbox = await start()
      await run(`perl -e 'for (1..1500) { mkdir "d" x 10; chdir "d" x 10 or die }'`, sandbox)
      await expect(download('d'.repeat(10), 'deep', LIMITS, sandbox)).rejects.toMatchObject({
        code: 'workspace.unsafe-file',
      })
      await expect(stat(join(dir, 'deep'))).rejects.toMatchObject({ code: 'ENOENT' })
      await sandbox.stop()
      expect(await readdir(join(dir, 'data', 'sandboxes'))).not.toContain(sandbox.id)
    })

    // --- /proc, /sys and the kernel -----------------------------------------------------------------------------------

    attempt('the machine through /proc', async () => {
      const pids = [1, process.pid, process.ppid, victim.pid]
      await run(
        pids.map((pid) => `cat /proc/${pid}/root${secretFile} /proc/${pid}/cwd/secret /proc/${pid}/environ`).join(';'),
      )
      await run(
        `for p in /proc/[0-9]*; do cat $p/environ $p/root${secretFile}; ls -l $p/fd; timeout 0.2 cat $p/fd/*; done </dev/null 2>/dev/null`,
      )
      await run(
        `cat /proc/self/root${secretFile} /proc/self/cwd/../..${secretFile} /proc/thread-self/root${secretFile}`,
      )
      const kernel = await run('head -c 64 /proc/kcore; head -c 64 /proc/kmem; head -c 8 /proc/kpageflags; dmesg')
      expect(kernel.stdout).toBe('')
    })

    attempt('settings of the kernel', async () => {
      const paths = ['kernel/core_pattern', 'kernel/modprobe', 'kernel/hostname', 'kernel/yama/ptrace_scope', 'vm/overcommit_memory', 'fs/binfmt_misc/register', 'kernel/unprivileged_bpf_disabled', 'net/ipv4/ip_forward', 'user/max_user_namespaces'].map((path) => `/proc/sys/${path}`) // prettier-ignore
      const values = () => paths.map((path) => readOrNothing(path))
      const before = values()
      const own = await run(
        `cat ${paths.at(-1)}; for f in ${paths.join(' ')}; do (echo '|/tmp/evil' > $f; echo 1000 > $f) 2>/dev/null && echo $f; done`,
      )
      expect(own.stdout.split('\n').slice(1).join('')).toBe('')
      expect((await run('echo h > /proc/sysrq-trigger && echo ok')).stdout).toBe('')
      expect((await run('echo -17 > /proc/1/oom_score_adj && echo ok')).stdout).toBe('')
      expect(values()).toEqual(before)
    })

    attempt('/sys and the release agent of control groups', async () => {
      const found = await run(
        'find /sys -writable -type f 2>/dev/null | head -n 5; find /sys/kernel/debug /sys/firmware/efi -mindepth 1 2>/dev/null | head -n 3',
      )
      expect(found.stdout).toBe('')
      const agent = `mkdir -p /tmp/cg; (mount -t cgroup -o rdma cgroup /tmp/cg || mount -t cgroup2 none /tmp/cg) 2>/dev/null && echo mounted
        for f in /sys/fs/cgroup /sys/fs/cgroup/*; do
          mkdir $f/escape && echo made; echo 1 > $f/notify_on_release && echo wrote; echo /tmp/evil > $f/release_agent && echo wrote
          echo max > $f/pids.max && echo wrote; echo $$ > $f/cgroup.procs && echo wrote
        done 2>/dev/null`
      expect((await run(agent)).stdout).toBe('')
    })

    attempt('mounting, leaving its root, and creating namespaces', async () => {
      const calls = {
        mount: call('mount', 'none', '/tmp', 'tmpfs', 0, 0),
        bind: call('mount', '/', '/tmp', '', 0x1000, 0),
        'remount /usr': call('mount', 'none', '/usr', '', 0x1020, 0),
        umount: call('umount2', '/proc', 2),
        'umount /usr': call('umount2', '/usr', 2),
        pivot: call('pivot_root', '/tmp', '/tmp'),
        fsopen: call('fsopen', 'tmpfs', 0),
        'open_tree clone': call('open_tree', -100, '/', 1),
        chroot: call('chroot', '/tmp'),
        users: call('unshare', 0x1000_0000),
        mounts: call('unshare', 0x2_0000),
        network: call('unshare', 0x4000_0000),
        both: call('unshare', 0x1002_0000),
        'chroot into another root': 'chroot /proc/1/root true && printf ok || printf EPERM',
        'join another': 'nsenter -t 1 -m -p true && printf ok || printf EPERM',
      }
      for (const [name, script] of Object.entries(calls))
        expect((await run(script)).stdout.trim(), name).toMatch(REFUSED)
    })

    attempt('system calls to large parts of the kernel', async () => {
      const calls = [
        call('bpf', 0, 0, 0),
        call('init_module', 0, 0, ''),
        call('kexec_load', 0, 0, 0, 0),
        call('swapon', '/tmp/swap', 0),
        call('reboot', 0, 0, 0),
        call('open_by_handle_at', 3, 0, 0),
        call('perf_event_open', 0, 0, -1, -1, 0),
        call('io_uring_setup', 8, 0),
        call('userfaultfd', 1),
        call('add_key', 'user', 'name', 'x', 1, -3),
        call('keyctl', 0, -3, 1),
        call('request_key', 'user', 'name', 0, -3),
        call('io_setup', 1, 0),
      ]
      for (const script of calls) expect((await run(script)).stdout, script).toMatch(/^(EPERM|ENOSYS|EACCES)$/)
      expect((await run('grep -E "^Seccomp:" /proc/self/status')).stdout).toMatch(/2\n$/)
    })

    attempt('keys of the login session that started this process', async () => {
      const index = new URL('../../src/node/sandbox/runtimes/', import.meta.url).href
      const attack = `my $type = "user"; my $name = "polar-escape"; my $id = syscall(${CALLS.keyctl}, 10, -3, $type, $name, 0); my $b = " " x 100; my $n = $id == -1 ? -1 : syscall(${CALLS.keyctl}, 11, $id, $b, 100); print $n == -1 ? "none" : substr($b, 0, $n); open(K, "/proc/keys"); print grep { /polar-escape/ } <K>;`
      const spec = { ...toSpec(), id: `keys-${process.pid}` }
      const owner = `
import { runtimes } from ${JSON.stringify(`${index}index.ts`)}
const dir = ${JSON.stringify(join(dir, 'data'))}
${prison.createScript}
const sandbox = await runtime.start(${JSON.stringify(spec)}, AbortSignal.timeout(30000))
const execution = await sandbox.exec({ command: ['perl', '-e', ${JSON.stringify(attack)}], leftovers: 'end', timeoutMs: 10000 })
for await (const chunk of execution.output('stdout')) process.stdout.write(chunk)
await sandbox.stop()
await runtime[Symbol.asyncDispose]()`
      // In a separate login session, so that the key ends with the session.
      const login = `syscall(${CALLS.keyctl}, 1, 0); my ($t, $n, $k) = ("user", "polar-escape", shift); syscall(${CALLS.add_key}, $t, $n, $k, length($k), -3); exec @ARGV`
      const asOwner = (...command: string[]) =>
        spawnSync('perl', ['-e', login, secret, ...command], { encoding: 'utf8', timeout: 40_000 })
      // Outside a sandbox the attempt finds the key.
      expect(asOwner('perl', '-e', attack).stdout).toContain(secret)
      const { stdout, stderr } = asOwner(process.execPath, '--input-type=module', '-e', owner)
      expect(stdout, stderr).toBe('none')
    })

    attempt('changing the user with setuid programs', async () => {
      const ran = await run(
        `cp /bin/bash mine; chmod 6755 mine; ./mine -p -c 'id -u; id -g'; echo | su -c 'id -u'; sudo -n id -u; newgrp root -c 'id -u'; pkexec id -u`,
      )
      expect(ran.stdout.split('\n')).not.toContain('0')
      const status = await run('grep -E "^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs)" /proc/self/status')
      expect(status.stdout.match(/:\s+0000000000000000/g)).toHaveLength(4)
      expect(status.stdout).toMatch(/NoNewPrivs:\s1/)
      await download('mine', 'mine')
      expect((await stat(join(dir, 'mine'))).mode & 0o6000).toBe(0)
      await rm(join(dir, 'mine'))
    })

    attempt('the clock and the name of the machine', async () => {
      const name = hostname()
      await run('date -s "2001-01-01"; hostname evil; hwclock --set --date 2001-01-01')
      expect((await run(call('settimeofday', '\\0' + 'x'.repeat(15), 0))).stdout).toMatch(REFUSED)
      expect((await run(call('sethostname', 'evil', 4))).stdout).toMatch(REFUSED)
      expect(new Date().getFullYear()).toBeGreaterThan(2020)
      expect(hostname()).toBe(name)
    })

    // --- other processes ----------------------------------------------------------------------------------------------

    attempt('signals to processes of the machine', async () => {
      const pids = [victim.pid!, process.pid, process.ppid]
      await run(`kill -9 ${pids.join(' ')}; kill -9 -1; :`)
      // Processes of the sandbox may have the same ids; signals to them are allowed.
      await run(`for p in ${pids.join(' ')}; do kill -STOP $p; kill -KILL -$p; done; pkill -9 sleep; :`)
      expect(/^State:\s+(\w)/m.exec(readFileSync(`/proc/${victim.pid}/status`, 'utf8'))?.[1]).toBe('S')
    })

    attempt('tracing processes of the machine, and of the sandbox itself', async () => {
      for (const pid of [1, victim.pid!, process.pid]) {
        expect((await run(call('ptrace', 16, pid, 0, 0))).stdout, `attach ${pid}`).toMatch(REFUSED)
        expect((await run(call('ptrace', 0x4206, pid, 0, 0))).stdout, `seize ${pid}`).toMatch(REFUSED)
        await run(`head -c 64 /proc/${pid}/mem /proc/${pid}/maps`)
      }
      expect(readFileSync(`/proc/${victim.pid}/status`, 'utf8')).toMatch(/TracerPid:\s0/)
    })

    attempt('processes, files and keys of another sandbox', async () => {
      await using other = await start({ env: { KEY: secret } })
      const script = `echo ${secret} | tee ~/own /tmp/own /dev/shm/own own; mkdir -p /tmp/sockets; perl -MIO::Socket::UNIX -e 'my $s = IO::Socket::UNIX->new(Local => "\\0polar-other", Listen => 1); sleep 30' & exec -a other-sandbox sleep 30`
      const busy = await other.exec({ command: ['bash', '-c', script], leftovers: 'end' })
      for await (const _ of busy.output('stdout')) break
      await run(
        'ps -ef; cat /proc/*/environ /proc/*/cmdline; cat /tmp/own /dev/shm/own ~/own own; pkill -9 -f other-sandbox',
      )
      await run('ipcs -a; find / -xdev -name own -exec cat {} + 2>/dev/null')
      expect((await run('grep -c polar-other /proc/net/unix')).stdout).toBe('0\n')
      expect((await run(call('shmget', 0x706f, 4096, 0o666))).stdout).toMatch(REFUSED)
      const inside = await other.exec({ command: ['pgrep', '-f', 'other-sandbox|^sleep 30'], leftovers: 'end' })
      await inside.result
      expect(await Promise.race([busy.result.then(() => 'ended'), sleep(200).then(() => 'runs')])).toBe('runs')
      await busy.kill()
    })

    attempt('a fork bomb', async (context) => {
      if (!runtime.capabilities.limits.includes('pids')) return context.skip('it does not claim a limit of processes')
      await using sandbox = await start({ limits: { pids: 50 } })
      const token = `bomb${randomBytes(8).toString('hex')}`
      const bomb = `bash -c 'b() { b | b & }; for i in $(seq 50); do b; done 2>/dev/null; sleep 600' ${token}`
      const execution = await sandbox.exec({
        command: ['bash', '-c', bomb],
        leftovers: 'end',
        timeoutMs: 2000,
        outputBytes: 1000,
      })
      let highest = 0
      const watch = setInterval(() => (highest = Math.max(highest, processesWith(token).length)), 100)
      const { durationMs } = await execution.result
      clearInterval(watch)
      expect(highest).toBeLessThanOrEqual(55)
      expect(durationMs).toBeLessThan(SOON_MS)
      expect(processesWith(token)).toEqual([])
      expect((await run('echo well', sandbox)).stdout).toBe('well\n')
    })

    attempt('a flood of output', async () => {
      const before = process.memoryUsage().rss
      const flood = 'yes 0123456789012345678901234567890123456789 & yes >&2 & wait'
      const execution = await shared.exec({
        command: ['bash', '-c', flood],
        leftovers: 'end',
        timeoutMs: 2000,
        outputBytes: MB,
      })
      let highest = before
      const watch = setInterval(() => (highest = Math.max(highest, process.memoryUsage().rss)), 20)
      const result = await execution.result
      clearInterval(watch)
      expect(result).toMatchObject({ isTimedOut: true })
      const written = result.stdoutBytes + result.stderrBytes
      expect(written).toBeGreaterThan(10 * MB)
      let kept = 0
      for await (const chunk of execution.output('stdout')) kept += chunk.length
      expect(kept).toBe(MB)
      // Dropped output waits for the garbage collector; only the retained part matters.
      expect(highest - before).toBeLessThan(Math.max(150 * MB, written / 4))
    })

    attempt('writing after it was frozen or stopped', async () => {
      const mounted = join(dir, 'mounted')
      await mkdir(mounted)
      await chmod(mounted, 0o777)
      const sandbox = await start({ mounts: [{ source: mounted, target: '/mounted', isReadOnly: false }] })
      const writer = `trap "" TERM HUP INT; while :; do echo x >> log; echo x >> /mounted/log; done`
      const hidden = `(setsid bash -c '(setsid bash -c "${writer.replaceAll('"', '\\"')}" &)' >/dev/null 2>&1 &); until [ -s log ]; do sleep 0.05; done; echo up`
      await run(hidden, sandbox, { leftovers: 'keep' })
      await sandbox.freeze()
      const look = async () => [(await read('log', sandbox)).length, (await stat(join(mounted, 'log'))).size]
      const first = await look()
      expect(first[1]).toBeGreaterThan(0)
      await sleep(300)
      expect(await look()).toEqual(first)
      await download('log', 'log', LIMITS, sandbox)
      expect((await stat(join(dir, 'log'))).size).toBe(first[0])
      await sandbox.stop()
      const size = (await stat(join(mounted, 'log'))).size
      await sleep(200)
      expect((await stat(join(mounted, 'log'))).size).toBe(size)
    })

    // --- network ------------------------------------------------------------------------------------------------------

    attempt('services of this machine: the control port, the engine, any other', async () => {
      const reached: Socket[] = []
      const server = createServer((socket) => reached.push(socket.on('error', () => {})))
      await once(server.listen(0, '0.0.0.0'), 'listening')
      const own = server.address()
      const ports = [stack.gateway.url, stack.engine.url].map((url) => Number(new URL(url).port))
      if (typeof own === 'object' && own !== null) ports.push(own.port)
      const addresses = Object.values(networkInterfaces()).flatMap((each) => (each ?? []).map(({ address }) => address))
      try {
        for (const host of new Set([
          '127.0.0.1',
          '127.1.2.3',
          '0.0.0.0',
          '::1',
          '10.0.2.2',
          '10.88.0.1',
          '172.17.0.1',
          ...addresses.slice(0, 4),
        ]))
          for (const port of ports) expect((await run(connect(host, port))).stdout, `${host} ${port}`).toBe('no\n')
        expect(reached).toEqual([])
      } finally {
        server.close()
      }
    })

    attempt('the metadata address of clouds, and other addresses', async () => {
      for (const host of ['169.254.169.254', 'fd00:ec2::254', '169.254.170.2', '100.100.100.200', '1.1.1.1'])
        expect((await run(connect(host, 80))).stdout, host).toBe('no\n')
      expect((await run('timeout 3 getent hosts example.com')).stdout).toBe('')
      expect(
        (await run('ip link add dummy0 type dummy 2>&1 || ifconfig lo:1 10.9.9.9 2>&1 || echo no')).stdout,
      ).toMatch(/no|not/i)
    })

    attempt('raw sockets', async () => {
      const raw = `perl -MSocket -MErrno -e 'print socket(S, 2, 3, 1) ? "ok" : "EPERM"; print socket(T, 17, 3, 0) ? "ok" : "EPERM"'`
      expect((await run(raw)).stdout).toBe('EPERMEPERM')
    })

    attempt('sockets of families that reach the machine, its hypervisor or more of the kernel', async () => {
      // AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK with its first protocol, by which libraries list interfaces.
      const families = `my %open; for my $f (0 .. 63) { for my $t (1, 2, 3, 5) { $open{$f} = 1 if socket(my $s, $f, $t, 0) } } print join " ", sort { $a <=> $b } keys %open`
      expect((await run(`perl -MSocket -e '${families}'`)).stdout).toBe('1 2 10 16')
      const netlink = `my @open = grep { socket(my $s, 16, 3, $_) } 0 .. 31; print "@open"`
      expect((await run(`perl -MSocket -e '${netlink}'`)).stdout).toBe('0')
      const pairs = `my @open = grep { socketpair(my $s, my $t, $_, 1, 0) } 0 .. 63; print "@open"`
      expect((await run(`perl -MSocket -e '${pairs}'`)).stdout).toBe('1')
      // Transports besides TCP and UDP: SCTP, DCCP, UDP-Lite, L2TP, MPTCP.
      const transports = `my @open = grep { my $p = $_; grep { socket(my $s, 2, $_, $p) } 1, 2, 5, 6 } 132, 33, 136, 115, 262; print "@open"`
      expect((await run(`perl -MSocket -e '${transports}'`)).stdout).toBe('')
      expect((await run(`perl -MSocket -e 'print socket(S, 40, 1, 0) ? "ok" : "refused"'`)).stdout).toBe('refused')
    })

    attempt('Unix sockets of this machine', async () => {
      const accepted: Socket[] = []
      const listener = (socket: Socket) => void accepted.push(socket.on('error', () => {}))
      const name = `polar-escape-${process.pid}`
      const [abstract, path] = [createServer(listener), createServer(listener)]
      const socketPath = join(dir, 'open.sock')
      await once(abstract.listen(`\0${name}`), 'listening')
      await once(path.listen({ path: socketPath, writableAll: true, readableAll: true }), 'listening')
      const knock = (address: string) =>
        `perl -MIO::Socket::UNIX -e 'print IO::Socket::UNIX->new(Peer => ${address}) ? "yes" : "no"'`
      try {
        // Outside a sandbox the attempt succeeds.
        expect(spawnSync('bash', ['-c', knock(`"\\0${name}"`)], { encoding: 'utf8' }).stdout).toBe('yes')
        expect((await run(knock(`"\\0${name}"`))).stdout).toBe('no')
        expect((await run(knock(`"${socketPath}"`))).stdout).toBe('no')
        for (const known of [
          '/run/docker.sock',
          '/run/podman/podman.sock',
          '/run/dbus/system_bus_socket',
          '/run/systemd/private',
        ])
          expect((await run(knock(`"${known}"`))).stdout, known).toBe('no')
        expect((await run(`grep -c ${name} /proc/net/unix`)).stdout).toBe('0\n')
        expect(accepted).toHaveLength(1)
      } finally {
        for (const socket of accepted) socket.destroy()
        abstract.close()
        path.close()
      }
    })

    attempt('another session, through its socket or through ours', async () => {
      const other = await stack.gateway.openSession()
      await using neighbour = await start({
        socket: {
          port: SOCKET_PORT + 1,
          accept: (socket) => (strangers.push(socket), stack.gateway.accept(other.id, socket)),
        },
      })
      expect((await run(connect('127.0.0.1', SOCKET_PORT + 1))).stdout).toBe('no\n')
      expect(strangers).toEqual([])
      const ask = (id: string, key: string, path: string) =>
        run(
          `exec 3<>/dev/tcp/127.0.0.1/${SOCKET_PORT}; printf 'GET ${path.replace('ID', id)} HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer ${key}\\r\\nConnection: close\\r\\n\\r\\n' >&3; head -n 1 <&3`,
        )
      expect((await ask(stack.session.id, stack.session.key, '/s/ID/v1/models')).stdout).toContain(' 200 ')
      expect((await ask(other.id, other.key, '/s/ID/v1/models')).stdout).toMatch(/ 40[134] /)
      for (const path of ['/control/sessions', '/sessions', '/metrics', '/admin', '/v1/sessions'])
        expect((await ask(stack.session.id, stack.session.key, path)).stdout, path).not.toContain(' 200 ')
      expect((await run('echo here', neighbour)).stdout).toBe('here\n')
    })
  })
}

function connect(host: string, port: number): string {
  return `timeout 2 bash -c 'exec 3<>/dev/tcp/${host}/${port}' 2>/dev/null && echo yes || echo no`
}

/** Returns the contents of all files of a tree, and the targets of links. */
async function contentsBelow(root: string): Promise<string> {
  const found: string[] = []
  for (const entry of await readdir(root, { recursive: true, withFileTypes: true }).catch(() => [])) {
    const path = join(entry.parentPath, entry.name)
    if (entry.isFile()) found.push(await readFile(path, 'latin1'))
    if (entry.isSymbolicLink()) found.push(await readlink(path))
  }
  return found.join('\n')
}

function readOrNothing(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}
