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

/** Replaces a task's image: programs of this machine, mounted read-only in the sandbox. */
export type Toolchain = Pick<SandboxSpec, 'mounts' | 'env'>

/** Returns the toolchain, or undefined with the reason if this machine lacks it. Created once and cached. */
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

/** A virtual environment of the Python in sandboxes, which may not be the first Python on the PATH. */
function pytestToolchain(): ReturnType<typeof findToolchain> {
  const base = '/usr/bin/python3'
  // Sandboxes mount it read-only: without bytecode each run of pytest compiles its modules again.
  const environment = pythonEnvironment('graded-tasks', 'graded-requirements.txt', ['--compile'], base)
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
        // At its original path, which compiled files contain; sandboxes contain /usr anyway.
        ...(goroot.startsWith('/usr/') ? [] : [{ source: goroot, target: goroot, isReadOnly: true }]),
        { source: cache, target: '/polar/graded/go-cache', isReadOnly: true },
      ],
      env: {
        PATH: `${goroot}/bin:${SYSTEM_PATH}`,
        GOROOT: goroot,
        GOCACHE: '/polar/graded/go-cache',
        // Disables the module index, which Go cannot write to a read-only cache and would need to find its own library.
        GODEBUG: 'goindex=0',
        GOFLAGS: '',
        GOTOOLCHAIN: 'local',
        CGO_ENABLED: '0',
      },
    },
  }
}

/** Compiles the used parts of the standard library in advance, which would take half a minute in each sandbox. */
function fillGoCache(task: GradedTask, cache: string): string | undefined {
  const mark = join(cache, 'filled')
  if (existsSync(mark)) return undefined
  const dir = mkdtempSync(join(tmpdir(), 'polar-go-'))
  try {
    cpSync(join(task.dir, 'repo'), dir, { recursive: true })
    cpSync(join(task.dir, 'hidden'), dir, { recursive: true })
    // The same settings as in sandboxes; other settings would cause a new compilation.
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
