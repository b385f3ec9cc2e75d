import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const root = fileURLToPath(new URL('../..', import.meta.url))
const pages = [
  'README.md',
  ...readdirSync(join(root, 'docs')).flatMap((name) => (name.endsWith('.md') ? [`docs/${name}`] : [])),
]

/** Commands of a page's shell blocks, comments taken off. */
function commandsOf(page: string): string[] {
  const blocks = readFileSync(join(root, page), 'utf8').matchAll(/^```sh\n(.*?)^```/gms)
  return [...blocks].flatMap(([, text = '']) =>
    text
      .split('\n')
      .map((line) => line.replace(/\s+#.*$/, '').trim())
      .filter((line) => line.startsWith('npm run polar -- ')),
  )
}

/** What a reader must fill in or fetch first, and servers, which do not end by themselves. */
const unfinished = /…|my-agent|localhost:8000|harness install/
const server = / engine( |$)/

/** A stranger's clone: the project's files, with a `.polar` of its own. */
let clone: string

beforeAll(async () => {
  clone = await mkdtemp(join(tmpdir(), 'polar-docs-'))
  for (const name of ['package.json', 'node_modules', 'src', 'examples'])
    await symlink(join(root, name), join(clone, name))
})
afterAll(() => rm(clone, { recursive: true, force: true }))

describe('the commands of the docs', () => {
  test.each(pages.filter((page) => commandsOf(page).some((command) => !unfinished.test(command))))(
    '%s',
    async (page) => {
      for (const command of commandsOf(page).filter((line) => !unfinished.test(line))) {
        if (server.test(command)) await startsServing(command)
        else expectSuccess(command)
      }
    },
  )
})

function expectSuccess(command: string): void {
  const run = spawnSync('sh', ['-c', command], { cwd: clone, encoding: 'utf8' })
  expect(run.status, `${command}\n${run.stderr}`).toBe(0)
}

async function startsServing(command: string): Promise<void> {
  const [, args = ''] = command.split('npm run polar -- ')
  // Another port than the page's, which may be taken here.
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
