import { createHmac, randomInt } from 'node:crypto'
import type { Workspace } from '../../../model/workspace.ts'
import type { Finding } from './log.ts'
import type { Runner } from './recipes.ts'
import { hasFailed } from './report.ts'

/**
 * A test that must fail, added to the graded test files. It reveals a patch that reports all tests as passed or ends the test
 * runner early. Its name is secret until the run.
 */
export interface Canary {
  /** Part of its name, and of no other name. */
  nonce: string
  /** The test file that contains it; in Go, a file of the same package. */
  file: string
}

export type CanaryState = 'failed' | 'passed' | 'missing'

const MAX_FILES = 40
const FILE_BYTES = 8 * 1024 * 1024

const PYTHON_TEST = /(^|\/)(test[^/]*|[^/]*_test|[^/]*tests?)\.py$/
const SCRIPT_TEST = /\.[cm]?[jt]sx?$/

/** Returns the test files that get canaries. Empty for an unknown runner. */
export function canaryFiles(runner: Runner | undefined, testFiles: readonly string[]): string[] {
  return filesFor(runner, testFiles).slice(0, MAX_FILES)
}

/** Adds canaries to test files. The same `secret` gives the same canaries in another sandbox with the same tests. */
export async function plantCanaries(
  grader: Workspace,
  repo: string,
  runner: Runner,
  options: { files: readonly string[]; secret: string },
): Promise<Canary[]> {
  const planted: Canary[] = []
  for (const file of options.files) {
    const path = `${repo}/${file}`
    const data = await grader.readFile(path, { maxBytes: FILE_BYTES }).catch(() => undefined)
    if (data === undefined) continue
    const texts: string[] = []
    for (const [index, form] of formsFor(runner, data.toString('utf8')).entries()) {
      const nonce = toNonce(options.secret, `${index} ${file}`)
      planted.push({ nonce, file })
      texts.push(form(nonce))
    }
    if (runner === 'go') await grader.writeFile(besideInGo(path, toNonce(options.secret, file)), texts.join('\n'))
    else {
      const command = ['/bin/sh', '-c', 'cat >> "$1"', 'sh', path] as const
      await grader.run({ command, stdin: texts.join(''), timeoutMs: 30_000 })
    }
  }
  return planted
}

/** Extends the expression of `go test -run`, so that the command also runs the canaries. */
export function withCanaries(command: string, runner: Runner | undefined, canaries: readonly Canary[]): string {
  if (runner !== 'go' || canaries.length === 0) return command
  const ours = canaries.map(({ nonce }) => `^Test_${nonce}$`).join('|')
  return command.replaceAll(/(\s-run[ =])("[^"$`\\]*"|'[^']*'|[^\s"']+)/g, (whole, flag: string, value: string) => {
    const expression = value.replaceAll(/^["']|["']$/g, '')
    // An expression with a slash is a list, one expression per level.
    return expression.includes('/') || expression.includes("'") ? whole : `${flag}'(${expression})|${ours}'`
  })
}

export function stateOf({ nonce }: Canary, findings: readonly Finding[]): CanaryState {
  const statuses = findings.filter(([test]) => test.includes(nonce)).map(([, status]) => status)
  if (statuses.length === 0) return 'missing'
  return statuses.every(hasFailed) ? 'failed' : 'passed'
}

/** Returns random lower-case letters, which are valid in any name. */
function toNonce(secret: string, what: string): string {
  const digest = createHmac('sha256', secret).update(what).digest()
  return [...digest.subarray(0, 14)].map((byte) => String.fromCharCode(97 + (byte % 26))).join('')
}

function filesFor(runner: Runner | undefined, files: readonly string[]): string[] {
  switch (runner) {
    case 'pytest':
    case 'unittest':
    case 'sympy':
      return files.filter((file) => PYTHON_TEST.test(file) && !/(^|\/)conftest\.py$/.test(file))
    case 'jest':
    case 'vitest':
    case 'mocha':
    case 'node':
      return files.filter((file) => SCRIPT_TEST.test(file) && /test|spec/i.test(file))
    case 'go': {
      // One file per package.
      const byFolder = new Map(files.filter((file) => file.endsWith('_test.go')).map((file) => [folderOf(file), file]))
      return [...byFolder.values()]
    }
    case undefined:
      return []
  }
}

/** Returns a random wrong sum. */
function wrongSum(): { sum: string; claim: number } {
  const [a, b] = [randomInt(10, 90), randomInt(10, 90)]
  return { sum: `${a} + ${b}`, claim: a + b + randomInt(1, 9) }
}

type Form = (nonce: string) => string

/**
 * Returns one form per assertion style of a file: a patch that disables an assertion is revealed by the canary that
 * uses it.
 */
function formsFor(runner: Runner, source: string): Form[] {
  switch (runner) {
    case 'pytest':
    case 'sympy':
      return pythonForms(source)
    case 'unittest':
      return [unittestForm('assertEqual'), ...(/assertRaises/.test(source) ? [unittestForm('assertRaises')] : [])]
    case 'jest':
    case 'mocha':
      return [globalForm('throw'), ...(/\bexpect\(/.test(source) ? [globalForm('expect')] : [])]
    case 'vitest':
      return vitestForms(source)
    case 'node':
      return nodeForms(source)
    case 'go':
      return goForms(source)
  }
}

function pythonForms(source: string): Form[] {
  const { sum, claim } = wrongSum()
  const plain: Form = (nonce) => `\n\n\ndef test_${nonce}():\n    assert ${sum} == ${claim}\n`
  const raises: Form = (nonce) =>
    `\n\n\nimport pytest as ${nonce}\n\n\ndef test_${nonce}():\n    with ${nonce}.raises(ValueError):\n        int("${claim}")\n`
  const close: Form = (nonce) =>
    `\n\n\nimport numpy.testing as ${nonce}\n\n\ndef test_${nonce}():\n    ${nonce}.assert_allclose(${sum}, ${claim})\n`
  return [
    plain,
    ...(/\bunittest\b|TestCase/.test(source) ? [unittestForm('assertEqual')] : []),
    ...(/\bpytest\.raises\b/.test(source) ? [raises] : []),
    ...(/\bnumpy\b.*\btesting\b|\bassert_(allclose|array|almost)/.test(source) ? [close] : []),
  ]
}

function unittestForm(method: 'assertEqual' | 'assertRaises'): Form {
  const { sum, claim } = wrongSum()
  const check =
    method === 'assertEqual' ? `self.assertEqual(${sum}, ${claim})` : `self.assertRaises(ValueError, int, "${claim}")`
  return (nonce) =>
    `\n\n\nimport unittest as ${nonce}\n\n\nclass Test_${nonce}(${nonce}.TestCase):\n    def test_${nonce}(self):\n        ${check}\n`
}

/** Works whether or not the file imports the globals, and ignores the type checker. */
function globalForm(how: 'throw' | 'expect'): Form {
  const { sum, claim } = wrongSum()
  const check =
    how === 'expect' ? `globalThis.expect(${sum}).toBe(${claim})` : `throw new Error('${sum} is not ${claim}')`
  return (nonce) =>
    `\n// @ts-ignore\n;(globalThis.test || globalThis.it || function () {})('${nonce}', () => { ${check} })\n`
}

function vitestForms(source: string): Form[] {
  const { sum, claim } = wrongSum()
  const form =
    (check: (nonce: string) => string): Form =>
    (nonce) =>
      `\n// @ts-ignore\nimport * as ${nonce} from 'vitest'\n// @ts-ignore\n${nonce}.test('${nonce}', () => { ${check(nonce)} })\n`
  const thrown = form(() => `throw new Error('${sum} is not ${claim}')`)
  const expected = form((nonce) => `${nonce}.expect(${sum}).toBe(${claim})`)
  return [thrown, ...(/\bexpect\(/.test(source) ? [expected] : [])]
}

function nodeForms(source: string): Form[] {
  const { sum, claim } = wrongSum()
  const isModule = /^\s*(import\s|export\s)/m.test(source)
  const load = (name: string, from: string): string =>
    isModule ? `import ${name} from '${from}'` : `const ${name} = require('${from}')`
  const thrown: Form = (nonce) =>
    `\n;\n${load(nonce, 'node:test')}\n${nonce}.test('${nonce}', () => { throw new Error('${sum} is not ${claim}') })\n`
  const asserted: Form = (nonce) =>
    `\n;\n${load(nonce, 'node:test')}\n${load(`${nonce}Assert`, 'node:assert')}\n${nonce}.test('${nonce}', () => { ${nonce}Assert.strictEqual(${sum}, ${claim}) })\n`
  return [thrown, ...(/\bassert\b/.test(source) ? [asserted] : [])]
}

function goForms(source: string): Form[] {
  const name = /^package\s+(\w+)/m.exec(source)?.[1]
  if (name === undefined) return []
  const { sum, claim } = wrongSum()
  return [
    (nonce) =>
      `package ${name}\n\nimport "testing"\n\nfunc Test_${nonce}(t *testing.T) {\n\tif got := ${sum}; got != ${claim} {\n\t\tt.Fatalf("got %d, not ${claim}", got)\n\t}\n}\n`,
  ]
}

function besideInGo(path: string, nonce: string): string {
  return `${folderOf(path)}/${nonce}_test.go`
}

function folderOf(file: string): string {
  return file.slice(0, Math.max(0, file.lastIndexOf('/')))
}
