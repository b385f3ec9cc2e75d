import { cp, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { existsSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import { ArtifactPolicy, Artifacts } from './artifacts.ts'
import { keepHarnessLogs, type HarnessLogs } from './harness-logs.ts'
import { presets } from '../harness/presets/index.ts'

let dir: string
let home: string
let kept: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-logs-'))
  home = join(dir, 'home')
  kept = join(dir, 'artifacts')
})
afterEach(() => rm(dir, { recursive: true, force: true }))

/** A sandbox that uses the files of this machine. */
const sandbox: HarnessLogs['sandbox'] = {
  async download(source, target) {
    if (!existsSync(source)) throw new RolloutError('workspace.file-missing', `There is no ${source}.`)
    await cp(source, target, { recursive: true, verbatimSymlinks: true })
  },
}

async function keep(more: Partial<HarnessLogs> = {}, policy: Record<string, unknown> = {}): Promise<Artifacts> {
  const artifacts = new Artifacts(kept, ArtifactPolicy.parse(policy))
  const scratch = join(dir, 'scratch')
  await keepHarnessLogs(
    { sandbox, home, folders: ['.cli/logs'], artifacts, scratch, ...more },
    new AbortController().signal,
  )
  expect(existsSync(scratch)).toBe(false)
  return artifacts
}

async function put(path: string, text: string): Promise<void> {
  const place = join(home, path)
  await mkdir(dirname(place), { recursive: true })
  await writeFile(place, text)
}

test('keepHarnessLogs() stores logs below harness/ with plain names', async () => {
  await put('.cli/logs/2026/11/15/rollout.jsonl', 'one')
  await put('.cli/logs/--work--/a b.jsonl', 'two')
  await put('.cli/logs/.root', 'three')
  await put('.cli/key', 'not asked for')
  const artifacts = await keep()
  expect(artifacts.kept.map(({ path }) => path).toSorted()).toEqual([
    'harness/2026/11/15/rollout.jsonl',
    'harness/_-work--/a_b.jsonl',
    'harness/_root',
  ])
  expect(await readFile(join(kept, 'harness/2026/11/15/rollout.jsonl'), 'utf8')).toBe('one')
})

test('keepHarnessLogs() keeps all files whose names collide or whose paths are too deep', async () => {
  await put('.cli/logs/a b', '1')
  await put('.cli/logs/a:b', '2')
  await put('.cli/logs/1/2/3/4/5/deep', '3')
  await put(`.cli/logs/${'n'.repeat(250)}`, '4')
  const artifacts = await keep()
  expect(artifacts.kept.map(({ path }) => path).toSorted()).toEqual([
    'harness/1/2/3/4_5_deep',
    'harness/a_b',
    'harness/a_b-2',
    `harness/${'n'.repeat(180)}`,
  ])
})

test('keepHarnessLogs() ignores a missing folder', async () => {
  await put('.cli/logs/log', 'x')
  const artifacts = await keep({ folders: ['.cli/none', '.cli/logs'] })
  expect(artifacts.kept).toEqual([{ path: 'harness/log', bytes: 1, isCut: false }])
})

test('keepHarnessLogs() follows no links', async () => {
  await writeFile(join(dir, 'secret'), 'of the machine')
  await put('.cli/logs/log', 'x')
  await symlink(join(dir, 'secret'), join(home, '.cli/logs/link'))
  await symlink(dir, join(home, '.cli/logs/folder'))
  await symlink(dir, join(home, '.cli/other'))
  const artifacts = await keep({ folders: ['.cli/logs', '.cli/other'] })
  expect(artifacts.kept.map(({ path }) => path)).toEqual(['harness/log', 'harness/not-kept.txt'])
  expect(await readFile(join(kept, 'harness/not-kept.txt'), 'utf8')).toBe('.cli/other: not a folder\n')
  expect(await readdir(join(kept, 'harness'))).toEqual(['log', 'not-kept.txt'])
})

test('keepHarnessLogs() reports a folder that cannot be copied, and copies the next', async () => {
  await put('.cli/logs/log', 'x')
  const refusing: HarnessLogs['sandbox'] = {
    async download(source, ...rest) {
      if (source.endsWith('huge')) throw new RolloutError('workspace.too-large', 'More than 500 files.')
      await sandbox.download(source, ...rest)
    },
  }
  const artifacts = await keep({ sandbox: refusing, folders: ['.cli/huge', '.cli/logs'] })
  expect(artifacts.kept.map(({ path }) => path)).toEqual(['harness/log', 'harness/not-kept.txt'])
  expect(await readFile(join(kept, 'harness/not-kept.txt'), 'utf8')).toContain('More than 500 files.')
})

test('keepHarnessLogs() obeys the limits of artifacts', async () => {
  await put('.cli/logs/log', 'x'.repeat(3000))
  const artifacts = await keep({}, { fileMb: 1 / 1024 })
  expect(artifacts.kept).toEqual([{ path: 'harness/log', bytes: 1024, isCut: true }])
})

test.each(presets.filter(({ logFolders }) => logFolders !== undefined))(
  'logFolders of $name are below HOME',
  (preset) => {
    for (const folder of preset.logFolders!) {
      expect(folder).toMatch(/^\.[\w.-]+(\/[\w.-]+)+$/)
      expect(folder.split('/')).not.toContain('..')
      // Skills are files of the task, and configuration is written by polar.
      expect(preset.skillsFolder?.startsWith(folder)).toBe(false)
    }
  },
)
