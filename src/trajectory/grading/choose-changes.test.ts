import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { Change, Rules } from './change-policy.ts'
import {
  chooseChanges,
  parseBlobs,
  parseChanges,
  parseIndex,
  writeDropped,
  type ChangeStore,
} from './choose-changes.ts'
import { DEFAULT_EXCLUDE, DEFAULT_PROTECTED } from './protected-files.ts'

/** A repository in which the content of an object is its id. */
function storeOf(agent: Readonly<Record<string, string>>): ChangeStore & { written: string[] } {
  const written: string[] = []
  return {
    written,
    repo: '/testbed',
    readBlobs: async (names) => new Map(names.map((name) => [name, Buffer.from(name)])),
    writeBlob: async (text) => `written-${written.push(text)}`,
    listAgentFiles: async () =>
      new Map(Object.entries(agent).map(([path, mode]) => [path, { mode, blob: `content of ${path}` }])),
  }
}

function rulesOf(basePaths: readonly string[], more: Partial<Rules> = {}): Rules {
  return {
    exclude: DEFAULT_EXCLUDE,
    protected: DEFAULT_PROTECTED,
    editable: [],
    goldPaths: new Set(),
    testPaths: new Set(),
    command: 'pytest',
    basePaths: new Set(basePaths),
    ...more,
  }
}

const change = (path: string, more: Partial<Change> = {}): Change => ({
  path,
  status: 'A',
  mode: '100644',
  blob: 'new',
  oldMode: '000000',
  oldBlob: '0',
  ...more,
})
const linkTo = (path: string, target: string): Change => change(path, { mode: '120000', blob: target })

test('chooseChanges() replaces a link by its target if that is a plain file of the same tree, and drops any other link', async () => {
  const agent = { 'src/a.py': '100755', 'src/folder/b.py': '100644', 'src/other': '120000', mod: '160000' }
  const links = [
    linkTo('near', 'src/a.py'),
    linkTo('src/folder/up', '../a.py'),
    linkTo('absolute', '/testbed/src/a.py'),
    linkTo('outside', '/tests/expected.txt'),
    linkTo('climb', '../tests/expected.txt'),
    linkTo('folder', 'src'),
    linkTo('chain', 'src/other'),
    linkTo('nothing', 'none'),
    linkTo('module', 'mod'),
    linkTo('whole', '.'),
  ]
  const { taken, dropped } = await chooseChanges(links, rulesOf([]), storeOf(agent))
  expect(taken.map(({ path, mode, blob }) => [path, mode, blob])).toEqual([
    ['near', '100755', 'content of src/a.py'],
    ['src/folder/up', '100755', 'content of src/a.py'],
    ['absolute', '100755', 'content of src/a.py'],
  ])
  expect(dropped.map(({ path, why }) => [path, why])).toEqual(
    ['outside', 'climb', 'folder', 'chain', 'nothing', 'module', 'whole'].map((path) => [path, 'link']),
  )
})

test('chooseChanges() replaces a link of the gold patch by its content too', async () => {
  const rules = rulesOf([], { goldPaths: new Set(['x']) })
  const { taken, dropped } = await chooseChanges([linkTo('x', '/tests/hidden')], rules, storeOf({}))
  expect([taken, dropped]).toEqual([[], [{ path: 'x', why: 'link' }]])
})

test('chooseChanges() keeps a folder of protected files if a file replaces it', async () => {
  const changes = [change('tests', {}), change('tests/test_a.py', { status: 'D', mode: '000000', oldMode: '100644' })]
  const { taken, dropped } = await chooseChanges(changes, rulesOf(['tests/test_a.py']), storeOf({}))
  expect(taken).toEqual([])
  expect(dropped.map(({ path }) => path)).toEqual(['tests', 'tests/test_a.py'])
})

test('chooseChanges() grades dependencies of package.json, with the scripts of the repository', async () => {
  const base = '{"scripts":{"test":"jest"},"dependencies":{}}'
  const agents = '{"scripts":{"test":"true"},"dependencies":{"left-pad":"1"}}'
  const edit = change('package.json', { status: 'M', blob: agents, oldMode: '100644', oldBlob: base })
  const store = storeOf({})
  const chosen = await chooseChanges([edit], rulesOf(['package.json']), store)
  expect(chosen).toMatchObject({ taken: [{ path: 'package.json', blob: 'written-1' }], merged: ['package.json'] })
  expect(JSON.parse(store.written[0]!)).toEqual({ scripts: { test: 'jest' }, dependencies: { 'left-pad': '1' } })
  const added = change('sub/package.json', { blob: agents })
  await chooseChanges([added], rulesOf([]), store)
  expect(JSON.parse(store.written[1]!)).toEqual({ dependencies: { 'left-pad': '1' } })
  const editable = await chooseChanges([edit], rulesOf(['package.json'], { editable: ['package.json'] }), store)
  expect(editable).toMatchObject({ taken: [{ blob: agents }], merged: [] })
  const broken = change('package.json', { status: 'M', blob: '{', oldMode: '100644', oldBlob: base })
  expect((await chooseChanges([broken], rulesOf(['package.json']), store)).dropped).toEqual([
    { path: 'package.json', why: 'protected' },
  ])
})

test('writeDropped() states the reason for every file, and writes nothing if no file was dropped', async () => {
  const written = new Map<string, string>()
  const evidence = { write: async (name: string, data: string) => void written.set(name, data) }
  await writeDropped(evidence, { dropped: [], merged: [] })
  expect(written.size).toBe(0)
  await writeDropped(evidence, { dropped: [{ path: 'Makefile', why: 'protected' }], merged: ['package.json'] })
  expect(JSON.parse(written.get('dropped-files.json')!)).toMatchObject({
    count: 2,
    files: [
      { path: 'Makefile', why: 'protected', reason: expect.stringContaining('"editable"') },
      { path: 'package.json', why: 'merged', reason: expect.stringContaining('those of the repository') },
    ],
  })
})

test('parseChanges() and parseIndex() parse the output of git with any file names', () => {
  const zeros = '0'.repeat(40)
  expect(
    parseChanges(Buffer.from(`:000000 120000 ${zeros} abc A\0a\nb\0:100644 000000 def ${zeros} D\0c d\0`)),
  ).toEqual([
    { path: 'a\nb', status: 'A', mode: '120000', blob: 'abc', oldMode: '000000', oldBlob: zeros },
    { path: 'c d', status: 'D', mode: '000000', blob: zeros, oldMode: '100644', oldBlob: 'def' },
  ])
  expect(parseIndex(Buffer.from('100644 abc 0\ta\tb\x00120000 def 0\tc\n\x00'))).toEqual(
    new Map([
      ['a\tb', { mode: '100644', blob: 'abc' }],
      ['c\n', { mode: '120000', blob: 'def' }],
    ]),
  )
})

test('parseBlobs() returns only complete objects, wherever the output is truncated', () => {
  const contents = fc.array(fc.uint8Array({ maxLength: 20 }), { maxLength: 5 })
  fc.assert(
    fc.property(contents, fc.nat(200), (blobs, cut) => {
      const names = blobs.map((_, index) => `${index}`.padStart(40, 'a'))
      const output = Buffer.concat(
        blobs.flatMap((blob, index) => [Buffer.from(`${names[index]} blob ${blob.length}\n`), blob, Buffer.from('\n')]),
      )
      const whole = parseBlobs(Buffer.concat([Buffer.from('0000 missing\n'), output]))
      expect([...whole]).toEqual(blobs.map((blob, index) => [names[index], Buffer.from(blob)]))
      for (const [name, data] of parseBlobs(output.subarray(0, cut))) expect(data).toEqual(whole.get(name))
    }),
  )
})
