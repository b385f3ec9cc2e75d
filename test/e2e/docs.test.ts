import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { installFolder } from '../../src/node/harness/find-harness.ts'
import { pi } from '../../src/node/harness/presets/pi.ts'
import { readVersion } from '../../src/compose/version.ts'
import { copyDatabase } from '../support/database-template.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import { whyNoPython } from '../support/python-environment.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const pages = [
  'README.md',
  ...readdirSync(join(root, 'docs')).flatMap((name) => (name.endsWith('.md') ? [`docs/${name}`] : [])),
]

/** Returns the commands of a page's shell blocks, without comments. */
function commandsOf(page: string): string[] {
  const blocks = readFileSync(join(root, page), 'utf8').matchAll(/^```sh\n(.*?)^```/gms)
  return [...blocks].flatMap(([, text = '']) =>
    text
      .split('\n')
      .map((line) => line.replace(/\s+#.*$/, '').trim())
      .filter((line) => /^(?:npm run polar -- |PYTHONPATH=)/.test(line)),
  )
}

/**
 * Commands with placeholders, commands that need a download, an engine or a cluster, and `train-demo`, which takes minutes:
 * train-demo.test.ts runs a part of it.
 */
const unfinished = /…|my-agent|localhost:8000|harness install|cluster slurm|train-demo/
const server = / engine( |$)/
/** Services that later commands of the page use. They run until the end of the page. */
const background = /^npm run polar -- (?:up|server|node)(?: |$)/
/** Runs pi in a sandbox, which requires the installed bundle of the harness. */
const bundled = /tasks\/hello\.yaml/
/** Runs the Python client. */
const python = /^PYTHONPATH=/
/** The harnesses of this checkout: the clone would have to download them. */
const { dir: harnessDir } = harnessPlaces(undefined, process.env)

/** A new clone: the files of the project with its own `.polar` folder. */
let clone: string
/** Commands that have succeeded in the clone. Pages share the clone, so a page with the same command finds its files. */
const succeeded = new Set<string>()

beforeAll(async () => {
  clone = await mkdtemp(join(tmpdir(), 'polar-docs-'))
  for (const name of ['package.json', 'node_modules', 'src', 'examples', 'clients'])
    await symlink(join(root, name), join(clone, name))
  // The data folders of the pages: `polar up` and `polar server` open a database faster than they create one.
  for (const name of ['up', 'site']) await copyDatabase(join(clone, '.polar', name, 'database'))
})
afterAll(() => rm(clone, { recursive: true, force: true }))

describe('commands of the docs', () => {
  test('npm run polar -- starts the CLI with the arguments after it', () => {
    const run = spawnSync('npm', ['run', '--silent', 'polar', '--', '--version'], { cwd: clone, encoding: 'utf8' })
    expect(run).toMatchObject({ status: 0, stdout: `${readVersion()}\n` })
  })

  test.for(pages.filter((page) => commandsOf(page).some((command) => !unfinished.test(command))))(
    'the commands of %s succeed',
    { timeout: 900_000 },
    async (page, context) => {
      const isInstalled = existsSync(installFolder(pi, harnessDir))
      const commands = commandsOf(page).filter((line) => !unfinished.test(line))
      const noPython = commands.some((command) => python.test(command)) ? whyNoPython() : undefined
      if (noPython !== undefined) context.skip(noPython)
      await using running = new AsyncDisposableStack()
      for (const command of commands) {
        if (background.test(command)) running.defer(await startInBackground(command))
        else if (succeeded.has(command)) continue
        else if (server.test(command)) await startsServing(command)
        else if (!bundled.test(command)) expectSuccess(command)
        else if (isInstalled) expectSuccess(command, { POLAR_HARNESS_DIR: harnessDir })
        succeeded.add(command)
      }
      if (!isInstalled && commands.some((command) => bundled.test(command))) context.skip(whyNoHarness(pi))
    },
  )
})

/** Runs the command without npm, which takes as long to start as a short command; the script of package.json has its own test. */
function expectSuccess(command: string, env: Record<string, string> = {}): void {
  const direct = command.replace(/^npm run polar --/, `'${process.execPath}' src/cli/main.ts`)
  const run = spawnSync('sh', ['-c', direct], { cwd: clone, encoding: 'utf8', env: { ...process.env, ...env } })
  expect(run.status, `${command}\n${run.stderr}`).toBe(0)
}

/** Resolves when the service is ready, with a function that stops it. */
async function startInBackground(command: string): Promise<() => Promise<void>> {
  const [, args = ''] = command.split('npm run polar -- ')
  const port = args.startsWith('node') ? [] : ['--port', '0']
  const child = spawn(process.execPath, ['src/cli/main.ts', ...args.split(' '), ...port], {
    cwd: clone,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = once(child, 'exit') as Promise<[number | null]>
  const early = ended.then(([code]) => {
    throw new Error(`${command} ended with ${code} before it was ready`)
  })
  await Promise.race([once(createInterface({ input: child.stdout }), 'line'), early])
  early.catch(() => {})
  return async () => {
    child.kill('SIGTERM')
    expect((await ended)[0], command).toBe(0)
  }
}

async function startsServing(command: string): Promise<void> {
  const [, args = ''] = command.split('npm run polar -- ')
  // The port of the page may be in use on this machine.
  const words = args.replace(/--port \d+/, '--port 0').split(' ')
  const child = spawn(process.execPath, ['src/cli/main.ts', ...words], {
    cwd: clone,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [url] = (await once(createInterface({ input: child.stdout }), 'line')) as [string]
  const health = await fetch(`${url}/health`)
  child.kill('SIGTERM')
  const [code] = (await once(child, 'exit')) as [number | null]
  expect([health.status, code]).toEqual([200, 0])
}
