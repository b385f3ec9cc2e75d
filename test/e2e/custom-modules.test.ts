import { spawnSync } from 'node:child_process'
import { mkdtemp, readFile, realpath, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { describePreset } from '../../src/node/harness/presets/harness.contract.ts'
import { loadHarness } from '../../src/node/harness/load-harness.ts'
import { createCustomRuntime, loadRuntime } from '../../src/node/sandbox/load-runtime.ts'
import { describeRuntime } from '../../src/node/sandbox/runtimes/runtime.contract.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const loader = fileURLToPath(new URL('../../src/node/sandbox/load-runtime.ts', import.meta.url))
const harnessModule = fileURLToPath(new URL('../support/modules/tiny-harness.ts', import.meta.url))
const runtimeModule = fileURLToPath(new URL('../support/modules/greeting-runtime.ts', import.meta.url))

const plug = await loadRuntime(runtimeModule, { allowed: [runtimeModule] })
describeRuntime('a runtime from a module', (dir) => createCustomRuntime(plug, {}, { dir, now: Date.now }), {
  orphanScript: `
const [script, dir, id] = process.argv.slice(1)
const { createCustomRuntime, loadRuntime } = await import(${JSON.stringify(loader)})
const path = ${JSON.stringify(runtimeModule)}
const runtime = createCustomRuntime(await loadRuntime(path, { allowed: [path] }), {}, { dir, now: Date.now })
const spec = { id, workdir: '/workspace', env: {}, limits: {}, network: { kind: 'open' }, mounts: [], labels: {}, leaseUntil: 0 }
const sandbox = await runtime.start(spec, AbortSignal.timeout(30000))
const execution = await sandbox.exec({ command: ['bash', '-c', script], leftovers: 'keep' })
for await (const _ of execution.output('stdout')) console.log('up')
`,
})

describePreset(await loadHarness(harnessModule, { allowed: [harnessModule] }))

let scratch: string
beforeEach(async () => {
  scratch = await realpath(await mkdtemp(join(tmpdir(), 'polar-modules-')))
  await writeFile(join(scratch, 'script.yaml'), 'default: { text: "It is done." }\n')
})
afterEach(() => rm(scratch, { recursive: true, force: true }))

function polar(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  // The harness resolves `node` through PATH.
  const env = { ...process.env, PATH: `${dirname(process.execPath)}:${process.env['PATH']}` }
  return spawnSync(process.execPath, [main, ...args], { cwd: scratch, encoding: 'utf8', env })
}

/** Returns the request of the only call, and the answer that the harness wrote to `file`. */
async function readCall(file: string): Promise<[request: string, answer: string]> {
  const reader = createCallLogReader({ dir: join(scratch, '.polar/sessions') })
  const [id = ''] = await reader.list()
  const { turns, complete } = await reader.load(id)
  expect({ calls: turns.length, complete }).toEqual({ calls: 1, complete: true })
  return [turns[0]?.request ?? '', await readFile(join(scratch, file), 'utf8')]
}

test('polar record runs the harness module of an agent file if the user allows it', async () => {
  await symlink(harnessModule, join(scratch, 'mine.ts'))
  await writeFile(join(scratch, 'agent.yaml'), 'import_path: mine.ts\nsettings: { file: said.txt }\n')
  const args = ['record', '--agent', 'agent.yaml', '--script', 'script.yaml', '--json']
  const run = polar(...args, '--allow-module', 'other.ts', '--allow-module', harnessModule, 'Do "it".')
  expect(run.status, run.stderr).toBe(0)
  expect(JSON.parse(run.stdout)).toMatchObject({ harness: 'tiny', harness_end: 'finished', exit_code: 0 })
  const [request, answer] = await readCall('said.txt')
  expect(request).toContain(String.raw`Do \"it\".`)
  expect(answer).toBe('It is done.')
})

test('polar record runs the module of --harness-module with the settings of an agent file', async () => {
  await writeFile(join(scratch, 'agent.json'), '{ "settings": { "file": "said.txt" } }')
  const args = ['--agent', 'agent.json', '--script', 'script.yaml', 'Go.']
  const run = polar('record', '--harness-module', harnessModule, ...args)
  expect(run.status, run.stderr).toBe(0)
  expect((await readCall('said.txt'))[1]).toBe('It is done.')
})

test('a module of an agent file that the user did not allow does not run', async () => {
  await writeFile(join(scratch, 'evil.mjs'), "import { writeFileSync } from 'node:fs'; writeFileSync('ran', '')")
  await writeFile(join(scratch, 'agent.yaml'), 'import_path: evil.mjs\n')
  const run = polar('record', '--agent', 'agent.yaml', '--allow-module', harnessModule, 'Go.')
  expect(run).toMatchObject({ status: 2, stderr: expect.stringContaining('evil.mjs is not on the list') })
  await expect(readFile(join(scratch, 'ran'))).rejects.toMatchObject({ code: 'ENOENT' })
})

test('polar sandbox starts sandboxes of a runtime from a module', async () => {
  const run = polar('sandbox', 'exec', '--runtime-module', runtimeModule, '--', 'pwd')
  expect({ status: run.status, stderr: run.stderr }).toEqual({ status: 0, stderr: '' })
  expect(run.stdout).toContain(join(scratch, '.polar/sandboxes/greeting/'))
  expect(polar('sandbox', 'ls', '--runtime-module', runtimeModule, '--json').stdout).toBe('[]\n')
})

test('a runtime from a module receives the settings of a task and rejects unknown settings', async () => {
  const deps = { dir: scratch, now: Date.now }
  await using runtime = createCustomRuntime(plug, { greeting: 'hello' }, deps)
  const spec = { id: 'a', workdir: '/workspace', env: {}, limits: {}, mounts: [], labels: {}, leaseUntil: 0 }
  await using sandbox = await runtime.start({ ...spec, network: { kind: 'open' } }, AbortSignal.timeout(30_000))
  const execution = await sandbox.exec({ command: ['sh', '-c', 'test "$GREETING" = hello'], leftovers: 'end' })
  expect(await execution.result).toMatchObject({ exitCode: 0 })
  expect(() => createCustomRuntime(plug, { greting: 'hello' }, deps)).toThrow('Unrecognized key: "greting"')
})
