import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import type { GradedTask } from './graded-tasks.ts'
import { pythonEnvironment } from './python-environment.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const SYSTEM_PATH = '/usr/local/bin:/usr/bin:/bin'

/** What takes the place of a task's image: programs of this machine, put into a sandbox read-only. */
export type Toolchain = Pick<SandboxSpec, 'mounts' | 'env'>

/** Undefined, with why, when this machine has not got them. Made once and kept. */
export function findToolchain(task: GradedTask): { toolchain: Toolchain } | { toolchain: undefined; reason: string } {
  switch (task.runner) {
    case 'pytest':
      return pytestToolchain()
    case 'unittest':
      return spawnSync('/usr/bin/python3', ['--version']).status === 0
        ? { toolchain: { mounts: [], env: { PATH: SYSTEM_PATH } } }
        : { toolchain: undefined, reason: '/usr/bin/python3 is not installed: apt-get install python3-venv' }
    case 'node':
      return { toolchain: mounted(dirname(process.execPath), '/polar/graded/node', '/polar/graded/node') }
    case 'go':
      return goToolchain(task)
  }
}

/** An environment of the Python that sandboxes see, which is not always the first one on the PATH. */
function pytestToolchain(): ReturnType<typeof findToolchain> {
  const base = '/usr/bin/python3'
  const environment = pythonEnvironment('graded-tasks', 'graded-requirements.txt', [], base)
  const reason = environment.install()
  if (reason !== undefined) return { toolchain: undefined, reason }
  const folder = dirname(dirname(environment.python))
  return { toolchain: mounted(folder, '/polar/graded/python', '/polar/graded/python/bin') }
}

function goToolchain(task: GradedTask): ReturnType<typeof findToolchain> {
  const asked = spawnSync('go', ['env', 'GOROOT', 'GOVERSION'], { encoding: 'utf8' })
  const [goroot, version] = (asked.stdout ?? '').trim().split('\n')
  if (asked.status !== 0 || !goroot || !version)
    return { toolchain: undefined, reason: 'go is not installed: apt-get install golang-go' }
  const cache = join(root, '.polar', `graded-tasks-${version.replaceAll(/[^\w.]/g, '_')}`)
  const reason = fillGoCache(task, cache)
  if (reason !== undefined) return { toolchain: undefined, reason }
  return {
    toolchain: {
      mounts: [
        // At its own place, which is part of what it compiles; sandboxes see /usr anyway.
        ...(goroot.startsWith('/usr/') ? [] : [{ source: goroot, target: goroot, isReadOnly: true }]),
        { source: cache, target: '/polar/graded/go-cache', isReadOnly: true },
      ],
      env: {
        PATH: `${goroot}/bin:${SYSTEM_PATH}`,
        GOROOT: goroot,
        GOCACHE: '/polar/graded/go-cache',
        // It could not be written to a cache that is read-only, and without it Go would not find its own library.
        GODEBUG: 'goindex=0',
        GOFLAGS: '',
        GOTOOLCHAIN: 'local',
        CGO_ENABLED: '0',
      },
    },
  }
}

/** Compiles what the standard library is asked for, so that no sandbox has to: half a minute each time. */
function fillGoCache(task: GradedTask, cache: string): string | undefined {
  const mark = join(cache, 'filled')
  if (existsSync(mark)) return undefined
  const dir = mkdtempSync(join(tmpdir(), 'polar-go-'))
  try {
    cpSync(join(task.dir, 'repo'), dir, { recursive: true })
    cpSync(join(task.dir, 'hidden'), dir, { recursive: true })
    // As sandboxes have it: what is compiled otherwise is compiled again.
    const env = { ...process.env, GOCACHE: cache, GOFLAGS: '', GOTOOLCHAIN: 'local', CGO_ENABLED: '0' }
    for (const args of [
      ['vet', './...'],
      ['test', '-count=1', './...'],
    ]) {
      const run = spawnSync('go', args, { cwd: dir, env, encoding: 'utf8' })
      if (run.error !== undefined) return run.error.message
    }
    writeFileSync(mark, '')
    return undefined
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

function mounted(source: string, target: string, bin: string): Toolchain {
  return { mounts: [{ source, target, isReadOnly: true }], env: { PATH: `${bin}:${SYSTEM_PATH}` } }
}
