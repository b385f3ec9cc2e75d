import { mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { shellTask } from '../../../test/support/node-stack.ts'
import { HostAccess, openHostGate, type HostGate } from './host-access.ts'

let scratch: string
let allowed: string
let gate: HostGate
let closed: HostGate
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-host-'))
  allowed = join(scratch, 'allowed')
  await mkdir(join(allowed, 'data'), { recursive: true })
  await writeFile(join(allowed, 'data', 'file'), 'fine')
  await mkdir(join(scratch, 'allowed-not'))
  await writeFile(join(scratch, 'allowed-not', 'file'), 'secret')
  await symlink('/etc/passwd', join(allowed, 'link'))
  await symlink(scratch, join(allowed, 'up'))
  await symlink(allowed, join(scratch, 'also-allowed'))
  const modules = [join(scratch, 'modules', 'grader.ts')]
  await mkdir(join(scratch, 'modules'))
  gate = await open(
    { paths: [allowed], hosts: ['judge.example', '*.lab.example', 'other.example:8443'], secrets: ['JUDGE_KEY'] },
    modules,
  )
  closed = await open({})
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

function open(access: Record<string, unknown>, modules: readonly string[] = []): Promise<HostGate> {
  return openHostGate({ access: HostAccess.parse(access), defaultRuntime: 'bubblewrap', modules })
}

/** All fields of a task that name paths of the node. */
const ways: [how: string, task: (path: string) => Record<string, unknown>][] = [
  ['upload_file', (source) => ({ runtime: { prepare: [{ type: 'upload_file', source, target: '/x' }] } })],
  ['upload_dir', (source) => ({ runtime: { prepare: [{ type: 'upload_dir', source, target: '/x' }] } })],
  ['eval_prepare', (source) => ({ runtime: { eval_prepare: [{ type: 'upload_dir', source, target: '/x' }] } })],
  ['a volume', (source) => ({ runtime: { kwargs: { volumes: [`${source}:/x:ro`] } } })],
  ['an image', (image) => ({ runtime: { backend: 'bubblewrap', image } })],
  ['an image of apptainer', (image) => ({ runtime: { backend: 'apptainer', image } })],
  [
    'a repository',
    (repository) => ({
      runtime: { prepare: [{ type: 'checkout', repository, commit: 'a'.repeat(40), target: '/x' }] },
    }),
  ],
  [
    'a file:// repository',
    (path) => ({
      runtime: { prepare: [{ type: 'checkout', repository: `file://${path}`, commit: 'a'.repeat(40), target: '/x' }] },
    }),
  ],
  ['skills', (skills_path) => ({ agent: { harness: 'codex', skills_path } })],
]

test.each(ways)('%s may name an allowed path, and no other', async (_, task) => {
  const admit = (path: string, by = gate): Promise<void> => by.admit(shellTask('true', task(path)))
  await admit(join(allowed, 'data', 'file'))
  await admit(join(allowed, 'data'))
  await admit(allowed)
  await admit(join(scratch, 'also-allowed', 'data'))
  const refused = [
    '/etc/passwd',
    '/usr',
    `${allowed}/../allowed-not/file`,
    `${allowed}/data/../../allowed-not`,
    join(scratch, 'allowed-not'),
    join(allowed, 'link'),
    join(allowed, 'up', 'allowed-not', 'file'),
    '/proc/self/environ',
    '/proc/self/root/etc/passwd',
    join(allowed, 'is-not-there'),
  ]
  for (const path of refused) await expect(admit(path), path).rejects.toMatchObject({ code: 'config.invalid' })
  await expect(admit(join(allowed, 'data'), closed)).rejects.toMatchObject({ code: 'config.invalid' })
})

test("a relative path is rejected, because the node's working directory is unknown", async () => {
  const task = shellTask('true', { runtime: { prepare: [{ type: 'upload_dir', source: '.', target: '/x' }] } })
  await expect((await open({ paths: ['/'] })).admit(task)).rejects.toMatchObject({ code: 'config.invalid' })
})

test('the rejection is the same for existing and missing files', async () => {
  const refusal = async (source: string): Promise<string> => {
    const task = shellTask('true', { runtime: { prepare: [{ type: 'upload_file', source, target: '/x' }] } })
    const error = (await gate.admit(task).catch((thrown: unknown) => thrown)) as Error
    return error.message.replaceAll(source, 'PATH')
  }
  expect(await refusal('/etc/shadow')).toBe(await refusal('/etc/no-such-file'))
})

test('a missing path in an allowed folder is reported as missing, not as forbidden', async () => {
  await symlink('/no/such/place', join(allowed, 'dangling'))
  const refusal = async (by: HostGate, source: string): Promise<string> => {
    const task = shellTask('true', { runtime: { prepare: [{ type: 'upload_file', source, target: '/x' }] } })
    return ((await by.admit(task).catch((thrown: unknown) => thrown)) as Error).message
  }
  const everything = await open({ paths: ['/'] })
  expect(await refusal(everything, '/no/such/file')).toBe(
    'runtime.prepare[0].source: /no/such/file does not exist on this node, or cannot be read.',
  )
  expect(await refusal(gate, join(allowed, 'data', 'none'))).toContain('does not exist')
  // The message does not reveal whether a file outside exists.
  for (const source of [join(allowed, 'up', 'allowed-not', 'none'), join(allowed, 'dangling'), '/etc/no-such-file'])
    expect(await refusal(gate, source), source).toContain('is not in a folder that tasks may use')
})

test('a writable volume is rejected even in an allowed folder', async () => {
  for (const volume of [`${allowed}:/x`, `${allowed}:/x:rw`]) {
    const task = shellTask('true', { runtime: { kwargs: { volumes: [volume] } } })
    await expect(gate.admit(task)).rejects.toMatchObject({ code: 'config.invalid' })
  }
})

test('image names and remote repositories are no paths', async () => {
  await closed.admit(shellTask('true', { runtime: { image: 'python:3.13' } }))
  const repository = 'https://example.com/a/b.git'
  const prepare = [{ type: 'checkout', repository, commit: 'a'.repeat(40), target: '/x' }]
  await closed.admit(shellTask('true', { runtime: { prepare } }))
})

test('a task gets no runtime without isolation unless the operator chose it', async () => {
  const local = shellTask('true', { runtime: { backend: 'local' } })
  await expect(closed.admit(local)).rejects.toMatchObject({ code: 'config.invalid' })
  await (await open({ runtimes: ['local'] })).admit(local)
  const only = await open({ runtimes: ['docker'] })
  await expect(only.admit(shellTask('true'))).rejects.toMatchObject({ code: 'config.invalid' })
})

test('evaluators may call the allowed hosts and ports only', () => {
  const may = (url: string): boolean => gate.mayCall(new URL(url))
  expect(may('https://judge.example/v1')).toBe(true)
  expect(may('http://JUDGE.example:9000/v1')).toBe(true)
  expect(may('https://a.lab.example')).toBe(true)
  expect(may('https://other.example:8443')).toBe(true)
  for (const url of [
    'https://other.example',
    'https://lab.example.evil.example',
    'https://evil-judge.example',
    'https://xlab.example',
    'http://169.254.169.254/latest/meta-data',
    'http://localhost:8080',
  ]) {
    expect([url, may(url)]).toEqual([url, false])
  }
  expect(closed.mayCall(new URL('https://judge.example'))).toBe(false)
})

test('evaluators see the allowed secrets and no other variable', () => {
  expect(gate.maySee('JUDGE_KEY')).toBe(true)
  expect(gate.maySee('AWS_SECRET_ACCESS_KEY')).toBe(false)
  expect(closed.maySee('PATH')).toBe(false)
})

test('an evaluator may use submitted files, files beside its module, and allowed files', async () => {
  const submission = join(scratch, 'submission')
  await mkdir(submission)
  await writeFile(join(submission, 'patch.diff'), '')
  await symlink('/etc', join(submission, 'etc'))
  await gate.assertGradable(join(submission, 'patch.diff'), submission)
  await gate.assertGradable(join(scratch, 'modules', 'tests'), submission)
  await gate.assertGradable(join(allowed, 'data'), submission)
  for (const source of [
    '/etc/passwd',
    join(submission, 'etc', 'passwd'),
    `${submission}/../allowed-not/file`,
    'file',
  ]) {
    await expect(gate.assertGradable(source, submission), source).rejects.toMatchObject({ code: 'config.invalid' })
  }
})
