import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { stringify } from 'yaml'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { copyDatabase } from './database-template.ts'

const main = join(dirname(dirname(import.meta.dirname)), 'src/cli/main.ts')

export interface UpProcess extends AsyncDisposable {
  url: string
  tokens: Record<'trainer' | 'node' | 'read', string>
  dir: string
  process: ChildProcess
  /** Returns its standard error so far. */
  log(): string
}

/** `node.allow` of an operator who permits tasks to use the whole machine, also as root. */
export const ALLOW_ALL = { paths: ['/'], hosts: ['*'], env: ['*'], runtimes: [...runtimes.kinds] }

/** Starts `polar up` in a separate folder. `configured`: the arguments name a file with these tokens. */
export async function startUp(words: readonly string[] = [], configured?: UpProcess['tokens']): Promise<UpProcess> {
  const dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-up-'))
  if (!words.includes('--dir')) await copyDatabase(join(dir, 'database'))
  if (!words.includes('--config')) await writeFile(join(dir, 'polar.yaml'), stringify({ node: { allow: ALLOW_ALL } }))
  const child = spawn(process.execPath, [main, 'up', '--json', '--port', '0', '--dir', dir, ...words], {
    cwd: dir,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let log = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (log += text))
  const stop = async (): Promise<void> => {
    const ended = child.exitCode === null && child.signalCode === null ? once(child, 'exit') : undefined
    child.kill('SIGTERM')
    const force = setTimeout(() => child.kill('SIGKILL'), 20_000)
    await ended
    clearTimeout(force)
    await rm(dir, { recursive: true, force: true })
  }
  try {
    const url = await Promise.race([
      readyUrl(child),
      once(child, 'exit').then(() => {
        throw new Error(`polar up ended before it was ready:\n${log}`)
      }),
    ])
    const tokens = configured ?? (JSON.parse(await readFile(join(dir, 'tokens.json'), 'utf8')) as UpProcess['tokens'])
    return { url, tokens, dir, process: child, log: () => log, [Symbol.asyncDispose]: stop }
  } catch (error) {
    await stop()
    throw error
  }
}

async function readyUrl(child: ChildProcess): Promise<string> {
  for await (const line of createInterface({ input: child.stdout! })) {
    const said = JSON.parse(line) as { event: string; url?: string }
    if (said.event === 'ready' && said.url !== undefined) return said.url
  }
  throw new Error('polar up closed its output before it was ready')
}
