import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const MAIN = new URL('../main.ts', import.meta.url).pathname

let folder: string
let script: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'polar-engine-command-'))
  script = join(folder, 'script.yaml')
  await writeFile(script, 'default: {text: from the script}\n')
})
afterAll(() => rm(folder, { recursive: true }))

function polar(...words: string[]): ChildProcess {
  return spawn(process.execPath, [MAIN, 'engine', ...words], { stdio: ['ignore', 'pipe', 'pipe'] })
}

async function outcome(child: ChildProcess): Promise<{ code: number | null; stdout: string; stderr: string }> {
  let stdout = ''
  let stderr = ''
  child.stdout?.on('data', (text) => (stdout += String(text)))
  child.stderr?.on('data', (text) => (stderr += String(text)))
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, stdout, stderr }
}

async function urlOf(child: ChildProcess): Promise<string> {
  const [line] = (await once(child.stdout!, 'data')) as [Buffer]
  return line.toString().trim()
}

describe('polar engine', () => {
  test.each([
    ['SIGTERM', 0],
    ['SIGINT', 130],
  ] as const)('prints its URL, serves the script, and ends on %s with %i and a whole log', async (signal, expected) => {
    const log = join(folder, `${signal}.jsonl`)
    const child = polar('--script', script, '--log', log, '--model-name', 'named')
    const ended = outcome(child)
    const url = await urlOf(child)
    const answer = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"model": "named", "messages": [{"role": "user", "content": "x"}]}',
    })
    expect(await answer.json()).toMatchObject({ choices: [{ message: { content: 'from the script' } }] })
    child.kill(signal)
    expect((await ended).code).toBe(expected)
    expect((await readFile(log, 'utf8')).trimEnd().split('\n')).toHaveLength(1)
  })

  test('rejects an address other than loopback without a key', async () => {
    const { code, stderr } = await outcome(polar('--host', '0.0.0.0', '--script', script))
    expect(code).toBe(2)
    expect(stderr).toContain('--api-key')
  })

  test('reports problems of a script', async () => {
    const broken = join(folder, 'broken.yaml')
    await writeFile(broken, 'default: {txt: x}\n')
    const { code, stderr } = await outcome(polar('--script', broken))
    expect(code).toBe(2)
    expect(stderr).toContain('default: Unrecognized key: "txt"')
    expect((await outcome(polar('--script', join(folder, 'missing.yaml')))).code).toBe(2)
    expect((await outcome(polar('--port', 'many'))).code).toBe(2)
  })

  test('its help ends with an example', async () => {
    const { code, stdout } = await outcome(polar('--help'))
    expect(code).toBe(0)
    expect(stdout.trimEnd().split('\n').at(-1)).toMatch(/^ {2}curl http/)
  })
})
