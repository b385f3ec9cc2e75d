import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { describeEvaluator } from '../../src/trajectory/evaluators/evaluator.contract.ts'
import { evaluators } from '../../src/trajectory/evaluators/index.ts'
import { Grading, type Graded, type GradeOptions } from '../support/grade.ts'

const deps = { now: Date.now, secret: () => undefined, mayCall: () => true }

/** A program with a bug, and a test runner with the output format of pytest. */
const FILES = {
  'code.sh': 'add() { echo $(( $1 - $2 )); }\n',
  'tests/test_code.sh': '. ./code.sh\ntest_add() { [ "$(add 2 3)" = 5 ]; }\ntest_zero() { [ "$(add 1 0)" = 1 ]; }\n',
  'run.sh': `
. ./tests/test_code.sh
bad=0
for t in test_add test_zero; do
  if $t; then echo "PASSED tests/test_code.sh::$t"; else echo "FAILED tests/test_code.sh::$t - wrong"; bad=1; fi
done
exit $bad
`,
  '.gitignore': 'built\n',
}
const PREPARE = [
  { type: 'upload_dir' as const, source: '', target: 'repo' },
  {
    type: 'exec' as const,
    command:
      'cd repo && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm one && echo own > built',
  },
]
const FIX = `cd repo && echo 'add() { echo $(( $1 + $2 )); }' > code.sh`
const CONFIG = {
  kind: 'test_on_output',
  repo_dir: 'repo',
  test_command: 'bash run.sh',
  expected_output_json: { 'tests/test_code.sh::test_add': 'PASSED', 'tests/test_code.sh::test_zero': 'PASSED' },
  protected: ['tests', 'run.sh'],
  max_mb: 10,
}

async function writeRepo(dir: string): Promise<typeof PREPARE> {
  const source = join(dir, 'repo')
  await mkdir(join(source, 'tests'), { recursive: true })
  for (const [name, text] of Object.entries(FILES)) await writeFile(join(source, name), text)
  return PREPARE.map((step) => (step.type === 'upload_dir' ? { ...step, source } : step))
}

describe('the evaluator test_on_output', { timeout: 60_000 }, () => {
  let grading: Grading
  let prepare: typeof PREPARE
  beforeAll(async () => {
    grading = await Grading.start()
    prepare = await writeRepo(grading.dir)
  })
  afterAll(() => grading[Symbol.asyncDispose]())

  const grade = (agent: string, config: object = {}, options: Partial<GradeOptions> = {}): Promise<Graded> => {
    const evaluator = evaluators.create(evaluators.config.parse({ ...CONFIG, ...config }), deps)
    return grading.grade({ prepare, agent, ...options, evaluator })
  }

  test('a correct change gives reward 1, and the graded patch is stored as evidence', async () => {
    const { result, evidence } = await grade(FIX)
    expect(result).toMatchObject({ outcome_reward: 1, metadata: { resolved: true, exit_code: 0, changed_files: 1 } })
    expect([...evidence.keys()]).toEqual(['graded.patch', 'test-stdout.log', 'test-stderr.log', 'tests.json'])
    expect(String(evidence.get('graded.patch'))).toContain('+add() { echo $(( $1 + $2 )); }')
  })

  test('no change and a wrong change give reward 0', async () => {
    expect((await grade('true')).result.metadata).toMatchObject({ resolved: false, empty_generation: true })
    const { result } = await grade('cd repo && echo "add() { echo 5; }" > code.sh')
    expect(result).toMatchObject({ outcome_reward: 0, metadata: { resolved: false, exit_code: 1, error_eval: false } })
    expect(result.metadata['mismatches']).toEqual([
      { id: 'tests/test_code.sh::test_zero', expected: 'PASSED', found: 'FAILED' },
    ])
  })

  test.each([
    ['staged', `${FIX} && git add -A`],
    ['committed', `${FIX} && git -c user.name=a -c user.email=a@b commit -qam done`],
    [
      'committed in another history',
      `${FIX} && rm -rf .git && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm x`,
    ],
    ['left without a repository', `${FIX} && rm -rf .git`],
    [
      'left with changed git settings',
      `${FIX} && git config core.hooksPath x && git config diff.external false && echo '* filter=evil' > .gitattributes`,
    ],
    ['in a new file', `cd repo && echo '. ./more.sh' > code.sh && echo 'add() { echo $(( $1 + $2 )); }' > more.sh`],
  ])('a change is graded when it is %s', async (_, agent) => {
    expect((await grade(agent)).result).toMatchObject({ outcome_reward: 1 })
  })

  const FORGED = 'for t in test_add test_zero; do echo "PASSED tests/test_code.sh::$t"; done; exit 0'
  test.each([
    ['edits the tests', `cd repo && echo '${FORGED}' > tests/test_code.sh`],
    ['edits the runner', `cd repo && echo '${FORGED}' > run.sh`],
    ['removes the tests', 'cd repo && rm -rf tests'],
    [
      'replaces the tests by a link',
      `cd repo && mkdir evil && echo '${FORGED}' > evil/test_code.sh && rm -rf tests && ln -s evil tests`,
    ],
    ['replaces the tests by a file', 'cd repo && rm -rf tests && echo x > tests'],
    [
      'leaves a background process that edits the runner',
      `cd repo && (setsid sh -c 'while :; do echo exit 0 > run.sh; sleep 0.01; done' >/dev/null 2>&1 &)`,
    ],
  ])('an agent that %s gets the reward of its code change only', async (_, trick) => {
    expect((await grade(trick)).result).toMatchObject({ outcome_reward: 0 })
    expect((await grade(`(${FIX}); ${trick}`)).result).toMatchObject({ outcome_reward: 1 })
  })

  test('every protected file stays as the repository has it, and the evidence states the reason', async () => {
    const forged = (path: string) => `mkdir -p "$(dirname ${path})" && echo '${FORGED}' > ${path}`
    const files = ['tests/helpers.sh', 'Makefile', 'GNUmakefile', 'pytest.toml', 'pytest.py', '_pytest/__init__.py']
    const more = ['tox.ini', 'setup.cfg', 'conftest.py', '.envrc', 'spec/a_spec.rb', 'CMakeLists.txt', 'Cargo.toml']
    const all = [...files, ...more]
    const config = {
      protected: undefined,
      test_command: `for f in ${more.join(' ')} pytest.py; do [ ! -e $f ] || exit 9; done
if [ -e Makefile ] || [ -e tests/helpers.sh ]; then ${FORGED}; fi; bash run.sh`,
    }
    const trick = `cd repo && ${[...all, 'run.sh'].map(forged).join(' && ')}`
    const cheat = await grade(trick, config)
    expect(cheat.result).toMatchObject({ outcome_reward: 0, metadata: { empty_generation: true } })
    const { result, evidence } = await grade(`(${FIX}); ${trick}`, config)
    expect(result).toMatchObject({ outcome_reward: 1, metadata: { dropped_count: all.length + 1 } })
    const report = JSON.parse(String(evidence.get('dropped-files.json'))) as {
      files: { path: string; why: string; reason: string }[]
    }
    expect(report.files.map(({ path }) => path).toSorted()).toEqual([...all, 'run.sh'].toSorted())
    expect(report.files.find(({ path }) => path === 'Makefile')).toMatchObject({
      why: 'protected',
      reason: expect.stringContaining('add the file to "editable"'),
    })
    const allowed = await grade(`(${FIX}); ${forged('repo/notes.mk')}`, {
      ...config,
      editable: ['notes.mk'],
      test_command: '[ -e notes.mk ] && bash run.sh',
    })
    expect(allowed.result).toMatchObject({ outcome_reward: 1, metadata: { dropped_count: 0 } })
  })

  test('a link is graded as the file of the repository that it names, and any other link is dropped', async () => {
    const agent = `cd repo && echo 'add() { echo $(( $1 + $2 )); }' > real.sh && rm code.sh && ln -s real.sh code.sh &&
ln -s /hidden/expected out && ln -s ../../hidden up && ln -s tests folder`
    const test_command = '[ ! -L code.sh ] && [ -z "$(find . -type l)" ] && bash run.sh'
    const { result } = await grade(agent, { test_command })
    expect(result).toMatchObject({ outcome_reward: 1 })
    expect(result.metadata['dropped_files']).toEqual(['folder', 'out', 'up'].map((path) => ({ path, why: 'link' })))
  })

  test('changed dependencies in package.json are graded; changed scripts are reset to those of the repository', async () => {
    const steps = [...prepare]
    const withPackage = {
      type: 'exec' as const,
      command: `cd repo && echo '{"scripts":{"test":"bash run.sh"}}' > package.json && git add -A && git -c user.name=a -c user.email=a@b commit -qm two`,
    }
    const agent = `${FIX} && echo '{"scripts":{"test":"${FORGED.replaceAll('"', String.raw`\"`)}"},"dependencies":{"x":"1"}}' > package.json`
    const { result, evidence } = await grade(
      agent,
      { test_command: `grep -q '"x": "1"' package.json && grep -q '"bash run.sh"' package.json && bash run.sh` },
      { prepare: [...steps, withPackage] },
    )
    expect(result).toMatchObject({ outcome_reward: 1, metadata: { changed_files: 2, dropped_count: 0 } })
    expect(String(evidence.get('dropped-files.json'))).toContain('those of the repository')
  })

  test('ignored and excluded files keep the version of the grader', async () => {
    const test_command = '[ "$(cat built)" = own ] && [ ! -e notes ] && bash run.sh'
    const agent = `${FIX} && echo evil > built && echo x > notes`
    expect((await grade(agent, { test_command, exclude_patterns: ['notes'] })).result).toMatchObject({
      outcome_reward: 1,
    })
  })

  test('the patch of patch_command is applied or reported as failed_apply_patch', async () => {
    const patch_command = 'git diff --binary'
    expect((await grade(FIX, { patch_command })).result).toMatchObject({ outcome_reward: 1 })
    expect((await grade('true', { patch_command })).result.metadata).toMatchObject({ empty_generation: true })
    const broken = await grade(FIX, {
      patch_command: 'printf "%s\\n" "diff --git a/x b/x" "--- a/x" "+++ b/x" "@@ -1 +1 @@" "-a" "+b"',
    })
    expect(broken.result.metadata).toMatchObject({ failed_apply_patch: true, resolved: false })
  })

  test('unexpected test results change the reward only if strict is set', async () => {
    const expected_output_json = JSON.stringify({ 'tests/test_code.sh::test_add': 'PASSED' })
    expect((await grade(FIX, { expected_output_json })).result.outcome_reward).toBe(1)
    const strict = await grade(FIX, { expected_output_json, strict: true })
    expect(strict.result).toMatchObject({
      outcome_reward: 0,
      metadata: { unexpected: ['tests/test_code.sh::test_zero'] },
    })
  })

  test('a failed, killed or timed out test command gives reward 0 even if its output passes', async () => {
    const { result } = await grade(FIX, { test_command: 'bash run.sh; exit 3' })
    expect(result).toMatchObject({ outcome_reward: 0, metadata: { error_eval: true, exit_code: 3 } })
    const killed = await grade(FIX, { test_command: 'bash run.sh; kill -9 $$' })
    expect(killed.result).toMatchObject({ outcome_reward: 0, metadata: { exit_code: null } })
    const slow = await grade(FIX, { test_command: 'bash run.sh; sleep 60', test_timeout: 0.5 })
    expect(slow.result).toMatchObject({ outcome_reward: 0, metadata: { test_timeout: true } })
  })

  test('a grader that cannot run fails with evaluator.crashed; a repository that the agent removed gives reward 0', async () => {
    await expect(grade('true', { repo_dir: '/no/such/place' })).rejects.toMatchObject({ code: 'evaluator.crashed' })
    await expect(grade(FIX, { test_command: 'no-such-runner' })).rejects.toMatchObject({ code: 'evaluator.crashed' })
    await expect(grade(FIX, { patch_command: 'no-such-git' })).rejects.toMatchObject({ code: 'evaluator.crashed' })
    const gone = await grade('rm -rf repo')
    expect(gone.result).toMatchObject({ outcome_reward: 0, metadata: { empty_generation: true } })
  })

  test.each([
    ['a file behind a link', 'ln -s /etc link; git update-index --add --cacheinfo "100644,$blob,link/passwd"'],
    ['a path that contains ..', 'git update-index --add --cacheinfo "100644,$blob,.gitx/../code.sh" || :'],
    ['an index of zeros', 'head -c 4096 /dev/zero > .git/index'],
    ['an index that declares billions of files', "printf 'DIRC\\0\\0\\0\\2\\377\\377\\377\\377' > .git/index"],
    ['settings that git rejects', 'echo "[core" > .git/config'],
    ['a file instead of the objects folder', 'rm -rf .git/objects; touch .git/objects'],
  ])('a repository with %s is graded', async (_, trick) => {
    const agent = `cd repo; echo 'add() { echo 5; }' > code.sh; blob=$(git hash-object -w code.sh); ${trick}`
    expect((await grade(agent)).result.outcome_reward).toBe(0)
  })

  test('code of the agent that exits with 127 gives reward 0', async () => {
    const { result } = await grade(`cd repo; echo 'add() { exit 127; }; exit 127' > code.sh`)
    expect(result).toMatchObject({ outcome_reward: 0, metadata: { exit_code: 127, resolved: false } })
  })

  test('invalid expectations are rejected with their path', () => {
    const problemsOf = (expected_output_json: unknown) =>
      evaluators.config.safeParse({ ...CONFIG, expected_output_json }).error?.issues.map(({ path }) => path.join('.'))
    expect(problemsOf({})).toEqual(['expected_output_json'])
    expect(problemsOf('{')).toEqual(['expected_output_json'])
    expect(problemsOf({ a: 'GREEN' })?.[0]).toMatch(/^expected_output_json/)
  })
})

describeEvaluator('test_on_output', {
  async setUp(dir) {
    const prepare = await writeRepo(dir)
    return {
      config: CONFIG,
      cases: [
        { title: 'a correct change', prepare, agent: FIX, reward: 1 },
        { title: 'no change', prepare, reward: 0 },
      ],
      slow: {
        config: { ...CONFIG, test_command: 'touch begun; sleep 600' },
        async begun(sandbox) {
          while ((await sandbox?.readFile('repo/begun', { maxBytes: 10 }).catch(() => undefined)) === undefined) {
            await sleep(20)
          }
        },
      },
    }
  },
})
