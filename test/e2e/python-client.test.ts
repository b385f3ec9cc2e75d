import { execFile } from 'node:child_process'
import { cp, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { beforeAll, expect, onTestFinished, test } from 'vitest'
import { readVersion } from '../../src/compose/version.ts'
import { SCRIPTED } from '../support/answer-script.ts'
import { pythonEnvironment, whyNoPython } from '../support/python-environment.ts'
import { startUp } from '../support/up-process.ts'

const root = join(import.meta.dirname, '../..')
const folder = join(root, 'clients/python')
const run = promisify(execFile)
const { python, pip, install } = pythonEnvironment('python-client', 'python-client-requirements.txt')

/** Why mypy, numpy and setuptools are missing; undefined if they are installed. */
let missing: string | undefined
beforeAll(() => {
  missing = install()
}, 300_000)

/** A copy of the package: Python and setuptools write files beside the source. */
async function copyPackage(): Promise<string> {
  const copy = await mkdtemp(join(tmpdir(), 'polar-python-'))
  onTestFinished(() => rm(copy, { recursive: true, force: true }))
  await cp(folder, copy, { recursive: true, filter: (path) => !path.endsWith('__pycache__') })
  return copy
}

test('the tests of the Python client pass against polar up', { timeout: 400_000 }, async ({ skip }) => {
  const reason = whyNoPython()
  if (reason !== undefined) skip(reason)
  const interpreter = missing === undefined ? python : 'python3'
  const cwd = await copyPackage()
  await run(interpreter, ['-m', 'compileall', '-q', '.'], { cwd })
  await using up = await startUp(['--runtime', 'local', ...SCRIPTED])
  const env = { ...process.env, PYTHONPATH: 'src', POLAR_SERVER_URL: up.url, POLAR_TOKEN: up.tokens.trainer }
  const args = ['-X', 'faulthandler', '-m', 'unittest', 'discover', '-v', '-t', '.', '-s', 'tests']
  // SIGABRT makes Python print the stack of each thread.
  const { stderr } = await run(interpreter, args, { cwd, env, timeout: 300_000, killSignal: 'SIGABRT' })
  expect(stderr).toMatch(/^test_results_of_many_tasks.* ok$/m)
  if (missing === undefined) expect(stderr).toMatch(/^test_numpy_arrays.* ok$/m)
})

test('mypy --strict accepts the Python client, its tests and its example', async ({ skip }) => {
  if (missing !== undefined) skip(`mypy cannot be installed here: ${missing}`)
  const args = ['-m', 'mypy', '--cache-dir', join(root, '.polar/mypy-cache')]
  const { stdout } = await run(python, args, { cwd: folder })
  expect(stdout).toMatch(/^Success: no issues/)
})

test('the wheel of the Python client has the version of package.json, its types and no dependencies', async ({
  skip,
}) => {
  if (missing !== undefined) skip(`setuptools cannot be installed here: ${missing}`)
  const cwd = await copyPackage()
  const [program, ...args] = [
    ...pip,
    'wheel',
    '-q',
    '--no-build-isolation',
    '--no-deps',
    '--no-index',
    '-w',
    'out',
    '.',
  ]
  await run(program, args, { cwd })
  const wheel = `polar_rl-${readVersion()}-py3-none-any.whl`
  expect(await readdir(join(cwd, 'out'))).toEqual([wheel])
  const check = [
    'import sys, importlib.metadata as metadata',
    'sys.path.insert(0, sys.argv[1])',
    'import polar_rl',
    'package = metadata.distribution("polar-rl")',
    'assert sys.argv[1] in polar_rl.__file__, polar_rl.__file__',
    'assert package.version == polar_rl.__version__ and package.requires is None, package.metadata',
    'assert any(str(file).endswith("py.typed") for file in package.files)',
  ]
  await run(python, ['-c', check.join('\n'), join(cwd, 'out', wheel)])
})
