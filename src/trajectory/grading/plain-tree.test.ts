import { link, lstat, mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import fc from 'fast-check'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { toPlainTree, type PlainTreeOptions } from './plain-tree.ts'

const SECRET = 'a file of this machine'
const LIMITS = { maxBytes: 1000, maxFiles: 100 }

let dir: string
let root: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-plain-'))
  root = join(dir, 'tree')
  await writeFile(join(dir, 'secret'), SECRET)
})
afterEach(() => rm(dir, { recursive: true, force: true }))

/** Creates a tree of files (text), folders (null) and links (`-> target`). */
async function make(entries: Readonly<Record<string, string | null>>): Promise<void> {
  await mkdir(root)
  for (const [name, text] of Object.entries(entries)) {
    const path = join(root, name)
    await mkdir(text === null ? path : dirname(path), { recursive: true })
    if (text?.startsWith('-> ')) await symlink(text.slice(3), path)
    else if (text !== null) await writeFile(path, text)
  }
}

/** Reads a tree in the same format. */
async function listing(path = root, below = ''): Promise<Record<string, string | null>> {
  const found: Record<string, string | null> = {}
  for (const entry of await readdir(path, { withFileTypes: true })) {
    const [inside, name] = [join(path, entry.name), below === '' ? entry.name : `${below}/${entry.name}`]
    if (entry.isDirectory()) Object.assign(found, { [name]: null }, await listing(inside, name))
    else found[name] = entry.isSymbolicLink() ? '(a link)' : await readFile(inside, 'utf8')
  }
  return found
}

async function plain(
  entries: Readonly<Record<string, string | null>>,
  options: Partial<PlainTreeOptions> = {},
): Promise<{ files: Record<string, string | null>; leftOut: Record<string, string> }> {
  await make(entries)
  const leftOut = await toPlainTree(root, { source: '/workspace', limits: LIMITS, ...options })
  return { files: await listing(), leftOut: Object.fromEntries(leftOut.map(({ path, why }) => [path, why])) }
}

test('toPlainTree() replaces a link by a copy of its target in the tree', async () => {
  const { files, leftOut } = await plain({
    'a/file': 'one',
    'a/near': '-> file',
    'b/far': '-> ../a/file',
    'b/absolute': '-> /workspace/a/file',
    'b/detour': '-> ../a/../a/./file',
    folder: '-> a',
  })
  expect(files).toEqual({
    a: null,
    'a/file': 'one',
    'a/near': 'one',
    b: null,
    'b/far': 'one',
    'b/absolute': 'one',
    'b/detour': 'one',
    folder: null,
    'folder/file': 'one',
  })
  expect(leftOut).toEqual({ 'folder/near': 'the link lies in a folder that another link points to' })
})

test('toPlainTree() omits links without a target in the tree, and reports the reason', async () => {
  const outside = 'the link points outside of the copied folder'
  const { files, leftOut } = await plain({
    file: 'one',
    'd/e/f': 'two',
    passwd: '-> /etc/passwd',
    tests: '-> /tests/expected.txt',
    up: '-> ../secret',
    'd/up': '-> ../../secret',
    'back-in': '-> ../workspace/file',
    'absolute-up': '-> /workspace/../secret',
    beside: '-> /workspace-2/file',
    nothing: '-> none',
    'below-file': '-> file/x',
    self: '-> self',
    'd/e/loop': '-> ..',
    whole: '-> .',
    first: '-> second',
    second: '-> file',
    through: '-> link/e/f',
    link: '-> d',
    proc: '-> /proc/self/root/tests/expected.txt',
  })
  expect(files).toEqual({
    file: 'one',
    d: null,
    'd/e': null,
    'd/e/f': 'two',
    second: 'one',
    link: null,
    'link/e': null,
    'link/e/f': 'two',
  })
  expect(leftOut).toEqual({
    passwd: outside,
    tests: outside,
    up: outside,
    'd/up': outside,
    'back-in': outside,
    'absolute-up': outside,
    beside: outside,
    proc: outside,
    nothing: 'the link points to nothing',
    'below-file': 'the link points to nothing',
    self: 'the link points to a folder that contains it',
    'd/e/loop': 'the link points to a folder that contains it',
    whole: 'the link points to a folder that contains it',
    first: 'the link leads through another link',
    through: 'the link leads through another link',
    'link/up': 'the link lies in a folder that another link points to',
    'link/e/loop': 'the link lies in a folder that another link points to',
  })
})

test('toPlainTree() follows no link into /proc when the whole sandbox was copied', async () => {
  const { leftOut } = await plain(
    { 'proc/self/cwd/x': 'one', a: '-> /proc/self/cwd/x', b: '-> /x/../proc/self/cwd/x' },
    { source: '/' },
  )
  expect(Object.keys(leftOut)).toEqual(['a', 'b'])
})

test('toPlainTree() keeps the links to keep, and copies nothing through them', async () => {
  const { files, leftOut } = await plain(
    { file: 'one', python: '-> /usr/bin/python3', changed: '-> /tests', through: '-> python' },
    {
      kept: async () =>
        new Map([
          ['python', '/usr/bin/python3'],
          ['changed', '/data'],
        ]),
    },
  )
  expect(files).toEqual({ file: 'one', python: '(a link)' })
  expect(Object.keys(leftOut)).toEqual(['changed', 'through'])
})

test('toPlainTree() reports a root that is a link, and does not change its target', async () => {
  await symlink(join(dir, 'secret'), root)
  expect(await toPlainTree(root, { source: '/workspace/out', limits: LIMITS })).toEqual([
    { path: '', why: 'the link points outside of the copied folder' },
  ])
  expect((await lstat(root)).isSymbolicLink()).toBe(true)
  expect(await readFile(join(dir, 'secret'), 'utf8')).toBe(SECRET)
})

test('toPlainTree() creates no copy at an excluded path', async () => {
  const isUnwanted = (below: string) => below === 'pkg/tests' || below.startsWith('pkg/tests/')
  const { files } = await plain({ 'evil/tests/x': 'one', 'evil/y': 'two', pkg: '-> evil' }, { isUnwanted })
  expect(Object.keys(files)).toEqual(expect.arrayContaining(['evil/tests/x', 'pkg/y']))
  expect(Object.keys(files)).not.toContain('pkg/tests')
})

test('toPlainTree() copies the content of a file for each of its hard links, within the limits', async () => {
  await make({ a: 'x'.repeat(400) })
  for (const name of ['b', 'c', 'd']) await link(join(root, 'a'), join(root, name))
  const leftOut = await toPlainTree(root, { source: '/workspace', limits: LIMITS })
  expect(leftOut.map(({ path }) => path)).toEqual(['c', 'd'])
  expect(Object.keys(await listing())).toEqual(['a', 'b'])
  await writeFile(join(root, 'a'), 'changed')
  expect(await readFile(join(root, 'b'), 'utf8')).toBe('x'.repeat(400))
})

test('toPlainTree() stops copying at the limits of bytes and of files', async () => {
  const many = Object.fromEntries(Array.from({ length: 20 }, (_, index) => [`l${index}`, '-> big']))
  const { leftOut } = await plain({ big: 'x'.repeat(300), ...many })
  expect(Object.keys(leftOut)).toHaveLength(18)
  await rm(root, { recursive: true })
  const links = Object.fromEntries(Array.from({ length: 30 }, (_, index) => [`d/l${index}`, '-> none']))
  const folders = Object.fromEntries(Array.from({ length: 30 }, (_, index) => [`m${index}`, '-> d']))
  const nested = await plain({ ...links, ...folders })
  // Links in linked folders count too; otherwise 900 links would be reported.
  expect(Object.keys(nested.leftOut).length).toBeLessThan(200)
})

test('toPlainTree() keeps modes, names with control characters, and names that differ only in case', async () => {
  await make({ 'new\nline': 'one', Out: 'upper', out: 'lower', l1: '-> new\nline', '..a': 'dots', '\u001B[31m': 'red' })
  await writeFile(join(root, 'run'), 'x', { mode: 0o755 })
  await symlink('run', join(root, 'l2'))
  expect(await toPlainTree(root, { source: '/workspace', limits: LIMITS })).toEqual([])
  expect(await listing()).toMatchObject({ l1: 'one', Out: 'upper', out: 'lower', '..a': 'dots', '\u001B[31m': 'red' })
  expect((await stat(join(root, 'l2'))).mode & 0o777).toBe(0o755)
})

const name = fc.constantFrom('a', 'b', 'c')
const path = fc.array(name, { minLength: 1, maxLength: 3 }).map((parts) => parts.join('/'))
const target = fc.oneof(
  fc.array(fc.constantFrom('a', 'b', 'c', '..', '.'), { minLength: 1, maxLength: 5 }).map((parts) => parts.join('/')),
  path.map((below) => `/workspace/${below}`),
  fc.constantFrom('/etc/passwd', '../secret', '../../secret', '/', '/proc/self/root', '/workspace/../secret'),
)
const entry = fc.oneof(
  { weight: 2, arbitrary: target.map((text) => `-> ${text}`) },
  { weight: 1, arbitrary: fc.constantFrom('one', 'two', null) },
)

/** Entries that can coexist: none below a file or link, none twice. */
function toTree(wanted: readonly (readonly [string, string | null])[]): Record<string, string | null> {
  const tree: Record<string, string | null> = {}
  for (const [below, what] of wanted) {
    const above = below.split('/').map((_, index, parts) => parts.slice(0, index).join('/'))
    const isFree = !Object.keys(tree).some((other) => other === below || other.startsWith(`${below}/`))
    if (isFree && above.every((folder) => tree[folder] === undefined || tree[folder] === null)) tree[below] = what
  }
  return tree
}

test('toPlainTree() leaves no link in any tree, keeps every file, and copies nothing from outside', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.tuple(path, entry), { maxLength: 12 }), async (wanted) => {
      await rm(root, { recursive: true, force: true })
      const tree = toTree(wanted)
      const { files } = await plain(tree)
      for (const [below, text] of Object.entries(tree))
        if (text?.startsWith('->') !== true) expect(files[below]).toBe(text)
      for (const text of Object.values(files)) expect([null, 'one', 'two']).toContain(text)
    }),
    { numRuns: 60 },
  )
  expect(await readFile(join(dir, 'secret'), 'utf8')).toBe(SECRET)
})
