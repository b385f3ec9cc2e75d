/**
 * Demo with the tiny engine: the pi CLI works on a task with scripted turns, then sends a question to the tiny model. The
 * gateway captures all tokens of both.
 */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const workspace = mkdtempSync(join(tmpdir(), 'polar-demo-'))

step('1. pi writes and runs a program; the tiny engine plays the model from a script')
record(
  ['--script', join(root, 'examples/scripts/hello.yaml')],
  'SCRIPT:hello Write hello.py that greets the world, and run it.',
)
for (const name of readdirSync(workspace))
  console.log(`   pi wrote ${name}: ${JSON.stringify(readFileSync(join(workspace, name), 'utf8'))}`)

step('2. pi sends a question to the tiny model (26M parameters, on this CPU; best in Chinese)')
record([], '你好，请介绍一下你自己。', ['--no-tools', '--system-prompt', 'You are a helpful assistant.'])

step('3. the last session, as training data')
polar(['export', 'last', '--to', join(root, '.polar/traces.jsonl')])
console.log(`   .polar/traces.jsonl: one line per sample, prompt_ids, response_ids, loss_mask, response_logprobs`)
console.log('\nNext: npm run polar -- show last --tokens')

function record(flags: readonly string[], prompt: string, harnessFlags: readonly string[] = []): void {
  polar(['record', ...flags, '--', 'node', join(root, 'examples/pi/run.ts'), ...harnessFlags, prompt])
}

function polar(args: readonly string[]): void {
  const [verb = '', ...rest] = args
  const folder = [verb === 'record' ? '--out' : '--from', join(root, '.polar/sessions')]
  const { status } = spawnSync(process.execPath, [join(root, 'src/cli/main.ts'), verb, ...folder, ...rest], {
    cwd: verb === 'record' ? workspace : resolve(root),
    stdio: ['ignore', 'inherit', 'inherit'],
    timeout: 120_000,
  })
  if (status !== 0) process.exit(status ?? 1)
}

function step(title: string): void {
  console.log(`\n━━ ${title}`)
}
