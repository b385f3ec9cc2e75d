import * as z from 'zod'
import { pathsOfPatch } from '../../grading/patch-paths.ts'

/** Test names: a list, a list as JSON or Python text, or the keys of an object. */
const TestNames = z
  .union([z.array(z.string()), z.string(), z.record(z.string(), z.unknown())])
  .transform((value, context) => {
    if (Array.isArray(value)) return value
    if (typeof value !== 'string') return Object.keys(value)
    if (value.trim() === '') return []
    const names = fromJson(value) ?? fromPython(value)
    if (names !== undefined) return names
    context.addIssue({ code: 'custom', message: 'must be a list of test names, or such a list as JSON' })
    return z.NEVER
  })

const Commands = z.union([z.string(), z.array(z.string()).transform((lines) => lines.join('\n'))])

/**
 * A dataset row: SWE-bench and its variants (Verified, Lite, Multimodal, Multilingual, SWE-Gym, SWE-rebench, SWE-smith,
 * SWE-bench Pro and Live), and Multi-SWE-bench. Other fields are accepted and ignored.
 */
export const InstanceRow = z.looseObject({
  instance_id: z.string().optional(),
  repo: z.string().optional(),
  version: z.coerce.string().nullish(),
  base_commit: z.string().nullish(),
  patch: z.string().nullish(),
  test_patch: z.string().nullish(),
  FAIL_TO_PASS: TestNames.nullish(),
  PASS_TO_PASS: TestNames.nullish(),
  fail_to_pass: TestNames.nullish(),
  pass_to_pass: TestNames.nullish(),
  test_cmd: Commands.nullish(),
  test_cmds: Commands.nullish(),
  log_parser: z.string().nullish(),
  eval_type: z.enum(['pass_and_fail', 'fail_only']).nullish(),
  eval_script: z.string().nullish(),
  install_config: z.looseObject({ test_cmd: Commands.nullish(), log_parser: z.string().nullish() }).nullish(),
  // Multi-SWE-bench.
  org: z.string().optional(),
  number: z.coerce.string().optional(),
  base: z.looseObject({ sha: z.string() }).optional(),
  fix_patch: z.string().nullish(),
  f2p_tests: TestNames.nullish(),
  n2p_tests: TestNames.nullish(),
  s2p_tests: TestNames.nullish(),
  p2p_tests: TestNames.nullish(),
})
export type InstanceRow = z.infer<typeof InstanceRow>

/** A row in a common form for all datasets. */
export interface Instance {
  id: string
  /** Lower case. */
  repo: string
  version: string
  baseCommit: string
  /** Empty if the row has none. */
  goldPatch: string
  goldPaths: ReadonlySet<string>
  testPatch: string
  /** Files of the test patch, and files that test names begin with. */
  testPaths: ReadonlySet<string>
  /** Files that exist after the test patch, in its order. */
  testFiles: readonly string[]
  FAIL_TO_PASS: readonly string[]
  PASS_TO_PASS: readonly string[]
  testCommand?: string
  logParser?: string
  evalType: 'pass_and_fail' | 'fail_only'
  /** Parts of the row's script: the setup of the environment, and the test commands. */
  script?: { setup: string; tests: string }
}

/** Throws RangeError with a message about a missing field. */
export function toInstance(row: InstanceRow): Instance {
  const baseCommit = row.base_commit ?? row.base?.sha
  if (baseCommit === undefined)
    throw new RangeError('instance.base_commit: the commit that the tests are for is missing')
  const failToPass =
    row.FAIL_TO_PASS ?? row.fail_to_pass ?? [row.f2p_tests, row.s2p_tests, row.n2p_tests].flatMap((list) => list ?? [])
  const passToPass = row.PASS_TO_PASS ?? row.pass_to_pass ?? row.p2p_tests ?? []
  if (failToPass.length + passToPass.length === 0)
    throw new RangeError('instance.FAIL_TO_PASS: the row names no test, so every patch would pass')
  const repo = row.org === undefined ? (row.repo ?? '') : `${row.org}/${row.repo ?? ''}`
  const goldPatch = row.patch ?? row.fix_patch ?? ''
  const testPatch = row.test_patch ?? ''
  const { touched, results } = pathsOfPatch(testPatch)
  const named = [...failToPass, ...passToPass].flatMap((test) => /^([^\s:[]+\.\w+)::/.exec(test)?.[1] ?? [])
  const testCommand = row.test_cmd ?? row.test_cmds ?? row.install_config?.test_cmd
  const logParser = row.log_parser ?? row.install_config?.log_parser
  const script = row.eval_script == null ? undefined : divideScript(row.eval_script)
  return {
    id: row.instance_id ?? `${row.org}__${row.repo}-${row.number}`,
    repo: repo.toLowerCase(),
    version: row.version ?? '',
    baseCommit,
    goldPatch,
    goldPaths: pathsOfPatch(goldPatch).touched,
    testPatch,
    testPaths: new Set([...touched, ...named]),
    testFiles: results,
    FAIL_TO_PASS: failToPass,
    PASS_TO_PASS: passToPass,
    testCommand: testCommand ?? undefined,
    logParser: logParser ?? undefined,
    evalType: row.eval_type ?? 'pass_and_fail',
    script,
  }
}

/**
 * Splits a row's script, which sets up the environment, restores test files, applies the test patch and runs the tests between
 * two marks. The evaluator does the two middle steps itself.
 */
function divideScript(text: string): { setup: string; tests: string } | undefined {
  const lines = text.split('\n')
  const start = lines.findIndex((line) => line.includes('>>>>> Start Test Output'))
  const end = lines.findIndex((line) => line.includes('>>>>> End Test Output'))
  if (start === -1 || end < start) return undefined
  const restore = lines.findIndex((line) => /^(git (checkout|apply|restore)|rm -f)\b/.test(line))
  const setup = lines.slice(0, Math.min(start, restore === -1 ? start : restore))
  const isAside = (line: string): boolean =>
    /^(#!|set -|git (status|show|diff|-c core\.fileMode=false diff)\b)/.test(line)
  return {
    setup: setup.filter((line) => !isAside(line)).join('\n'),
    tests: lines.slice(start + 1, end).join('\n'),
  }
}

function fromJson(text: string): string[] | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return z.array(z.string()).safeParse(value).data
  } catch {
    return undefined
  }
}

/** `['a', "b's"]`. */
function fromPython(text: string): string[] | undefined {
  const list = /^\s*\[(.*)\]\s*$/s.exec(text)?.[1]
  if (list === undefined) return undefined
  const names: string[] = []
  const item = /\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*(,|$)/sy
  while (item.lastIndex < list.length && list.slice(item.lastIndex).trim() !== '') {
    const match = item.exec(list)
    if (match === null) return undefined
    names.push((match[1] ?? match[2] ?? '').replaceAll(/\\(.)/gs, (_, c: string) => ({ n: '\n', t: '\t' })[c] ?? c))
  }
  return names
}
