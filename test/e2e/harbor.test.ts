import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test, type TestContext } from 'vitest'
import { describeEvaluator } from '../../src/trajectory/evaluators/evaluator.contract.ts'
import { evaluators } from '../../src/trajectory/evaluators/index.ts'
import type { Sandbox } from '../../src/node/sandbox/runtimes/runtime.ts'
import { Grading, type GradeOptions } from '../support/grade.ts'

let grading: Grading
let count = 0
beforeAll(async () => {
  grading = await Grading.start()
})
afterAll(() => grading[Symbol.asyncDispose]())

const secrets: Readonly<Record<string, string>> = { KEY: 'a secret' }
const deps = { now: Date.now, secret: (name: string) => secrets[name], mayCall: () => true }

async function writeTests(script: string): Promise<string> {
  const dir = join(grading.dir, `tests-${(count += 1)}`)
  await mkdir(dir)
  await writeFile(join(dir, 'test.sh'), script)
  return dir
}

/** Grades with `script` as test.sh. Requires sandboxes with their own root folder, because rewards are in /logs. */
async function grade(
  context: TestContext,
  script: string,
  config: object = {},
  options: Omit<GradeOptions, 'evaluator'> = {},
) {
  if (!grading.runtime.capabilities.isolatesFiles) return context.skip('/tests and /logs would be those of the machine')
  const settings = { kind: 'harbor', tests_dir: await writeTests(script), max_files: 5000, ...config }
  return grading.grade({ ...options, evaluator: evaluators.create(evaluators.config.parse(settings), deps) })
}

const writeReward = (reward: string, file = 'reward.txt') => `echo '${reward}' > /logs/verifier/${file}`

test('the reward and its components come from the files that the tests write', async (context) => {
  const { result, evidence } = await grade(
    context,
    `echo seen; ${writeReward('{"reward": 0.5, "style": -2}', 'reward.json')}; ${writeReward('9')}; echo '{}' > /logs/verifier/ctrf.json`,
  )
  expect(result).toMatchObject({ outcome_reward: 0.5, components: { reward: 0.5, style: -2 } })
  expect(evidence.get('verifier-stdout.log')?.toString()).toBe('seen\n')
  expect([...evidence.keys()].toSorted()).toEqual([
    'verifier-ctrf.json',
    'verifier-reward.json',
    'verifier-stderr.log',
    'verifier-stdout.log',
  ])
})

test('a reward outside of the declared range counts as missing; clamp moves it inside and records the original', async (context) => {
  const { result: outside } = await grade(context, writeReward('-7.5'))
  expect(outside).toMatchObject({
    outcome_reward: 0,
    metadata: { missing_reward: expect.stringContaining('-7.5 is outside of the declared range, 0 to 1') },
  })
  expect((await grade(context, writeReward('-7.5'), { reward_range: [-10, 10] })).result.outcome_reward).toBe(-7.5)
  expect((await grade(context, 'true', { reward_range: [-10, 10] })).result.outcome_reward).toBe(-10)
  const { result } = await grade(context, writeReward('3'), { clamp: [0, 1] })
  expect(result).toMatchObject({ outcome_reward: 1, components: { reward: 3 }, metadata: { clamped_from: 3 } })
})

test('a reward counts for every exit code of the tests, as in Harbor', async (context) => {
  const { result } = await grade(context, `${writeReward('1')}; exit 3`)
  expect(result).toMatchObject({ outcome_reward: 1, metadata: { exit_code: 3 } })
})

test('tests without a reward give the lowest reward, or fail if missing_reward is fail', async (context) => {
  const { result } = await grade(context, 'exit 4')
  expect(result).toMatchObject({ outcome_reward: 0, metadata: { exit_code: 4, missing_reward: expect.any(String) } })
  expect((await grade(context, writeReward('nan'))).result).toMatchObject({
    outcome_reward: 0,
    metadata: { missing_reward: expect.stringContaining('holds no number') },
  })
  await expect(grade(context, 'echo broken >&2; exit 4', { missing_reward: 'fail' })).rejects.toMatchObject({
    code: 'evaluator.crashed',
    message: expect.stringMatching(/neither reward\.json nor reward\.txt .*exited with 4.*broken/s),
  })
})

test('tests that need a program that the image lacks are a failure of the grader', async (context) => {
  await expect(grade(context, 'no-such-program')).rejects.toMatchObject({
    code: 'evaluator.crashed',
    message: expect.stringContaining('need the program no-such-program'),
  })
})

test.for([
  ['ends the tests with 127', "echo 'echo no-such-program: not found >&2; exit 127' > code"],
  ['writes an invalid reward', "echo 'echo nan > /logs/verifier/reward.txt; exit 1' > code"],
  ['removes the folder of the reward', "echo 'rm -rf /logs; touch /logs; exit 1' > code"],
  ['removes the shell', "echo 'rm -f /bin/sh /bin/bash; exit 1' > code"],
])('code of the agent that %s gives the lowest reward', async ([, agent], context) => {
  const run = await grade(context, `sh code || exit $?; ${writeReward('1')}`, {}, { agent: agent! })
  expect(run.result).toMatchObject({ outcome_reward: 0, metadata: { missing_reward: expect.any(String) } })
})

test('a tests folder without test.sh is a configuration error, reported before an agent runs', async () => {
  const empty = join(grading.dir, 'no-tests')
  await mkdir(empty)
  const create = (config: object) => evaluators.create(evaluators.config.parse({ kind: 'harbor', ...config }), deps)
  await expect(create({ tests_dir: empty }).check!(async () => {})).rejects.toMatchObject({
    code: 'config.invalid',
    message: expect.stringContaining('test.sh'),
  })
  await create({ tests_dir: empty, test_command: 'true' }).check!(async () => {})
})

test('if missing_reward is check, a missing reward is 0 only if the agent caused it', async (context) => {
  const config = { missing_reward: 'check' }
  const script = `[ -e broken ] || ${writeReward('1')}`
  const broken = await grade(context, script, config, { agent: 'touch broken' })
  expect(broken.result).toMatchObject({ outcome_reward: 0, metadata: { rewards_without_agent: { reward: 1 } } })
  expect(broken.graders).toBe(3)
  await expect(grade(context, 'true', config, { agent: 'touch broken' })).rejects.toMatchObject({
    code: 'evaluator.crashed',
  })
})

test('tests that exceed their time limit give reward 0, even if they wrote a reward', async (context) => {
  const { result } = await grade(context, `${writeReward('1')}; sleep 600`, { verifier_timeout_seconds: 1 })
  expect(result).toMatchObject({ outcome_reward: 0, metadata: { test_timeout: true } })
})

test('the tests see the workdir and the configured paths, and no other files of the agent', async (context) => {
  const agent = `
mkdir -p folder /data "$HOME/bin"
echo 1 > folder/file; echo 2 > /data/file; echo 3 > /tmp/file; echo exit > "$HOME/.bashrc"; rm given`
  const script = `ls -d folder/file /data/file /missing /tmp/file "$HOME/.bashrc" given 2> /dev/null; ${writeReward('1')}`
  const { evidence } = await grade(
    context,
    script,
    { paths: ['.', '/data', '/missing'] },
    {
      agent,
      prepare: [{ type: 'exec', command: 'touch given' }],
    },
  )
  expect(evidence.get('verifier-stdout.log')?.toString().split('\n')).toEqual(['/data/file', 'folder/file', ''])
})

test('if state is everything, the tests see all files of the agent, but not its tests, rewards and processes', async (context) => {
  const agent = `
mkdir -p /tests /logs/verifier
echo 1 | tee /logs/verifier/reward.txt /tests/planted /elsewhere > /dev/null
echo '{"reward": 1}' > /logs/verifier/reward.json
(setsid sleep 600 > /dev/null 2>&1 &)`
  const script = `cat /elsewhere; ls /tests /logs/verifier; pgrep -f 'sleep 600'; ${writeReward('0')}`
  const { result, evidence } = await grade(context, script, { state: 'everything' }, { agent })
  expect(result.outcome_reward).toBe(0)
  expect(evidence.get('verifier-stdout.log')?.toString().split('\n')).toEqual([
    '1',
    '/logs/verifier:',
    '',
    '/tests:',
    'test.sh',
    '',
  ])
})

/** A test script that gives reward 1 if one of the paths exposes the tests. */
const showsTests = (paths: string) =>
  `for f in ${paths}; do grep -qs the-hidden-tests "$f" && r=1; done; echo \${r:-0} > /logs/verifier/reward.txt # the-hidden-tests`

test('no link of the agent leads to the tests', async (context) => {
  const agent = `
ln -s /tests/test.sh out; ln -s ../tests/test.sh relative; ln -s /tests folder; ln -s / root; ln -s out chain
ln -s /proc/self/root/tests/test.sh process; mkdir d; ln -s /tests/test.sh d/in; chmod 111 d; ln -s /logs/verifier v`
  const script = showsTests('out relative folder/test.sh root/tests/test.sh chain process d/in')
  const { result, evidence } = await grade(context, script, {}, { agent })
  expect(result.outcome_reward).toBe(0)
  expect(JSON.parse(String(evidence.get('verifier-left-out.json')))).toMatchObject({ count: 8 })
})

test('if state is everything, no link of the agent leads to the tests or moves them', async (context) => {
  const agent = `
ln -s /tests/test.sh out; ln -s / root; ln -s root/tests/test.sh through; ln -s /proc/self/root/tests/test.sh process
mkdir -p /deep/d; ln -s /tests /deep/d/in; chmod 111 /deep/d; ln -s /deep/d/in/test.sh chain
mkdir -p pub/verifier; ln -s "$PWD/pub" /logs; mkdir /tests; ln -s ../workspace/pub /tests/sub`
  const paths = 'out root/tests/test.sh through process chain /deep/d/in/test.sh'
  const script = `[ ! -e /workspace/pub/verifier/reward.txt ] && [ -L /image ] && [ ! -e /tests/sub ] || exit 9
${showsTests(paths)}
[ ! -e /workspace/pub/verifier/reward.txt ] || echo 2 > /logs/verifier/reward.txt`
  const prepare = [{ type: 'exec' as const, command: 'ln -s /tests /image' }]
  const { result, evidence } = await grade(context, script, { state: 'everything' }, { agent, prepare })
  expect(result.outcome_reward).toBe(0)
  const { files } = JSON.parse(String(evidence.get('verifier-left-out.json'))) as { files: { path: string }[] }
  expect(files.map(({ path }) => path).toSorted()).toEqual(
    ['/deep/d/in', ...['chain', 'out', 'process', 'root', 'through'].map((name) => `/workspace/${name}`)].toSorted(),
  )
})

test('excluded paths keep the version of the task', async (context) => {
  const { evidence } = await grade(
    context,
    `cat tests/a.py conftest.py src.py; ls; ${writeReward('1')}`,
    { exclude: ['tests', 'conftest.py'] },
    {
      prepare: [{ type: 'exec', command: 'mkdir tests; echo theirs > tests/a.py; echo theirs > conftest.py' }],
      agent:
        'rm -rf tests; ln -s / tests; echo mine > conftest.py; echo mine > src.py; mkdir sub; touch sub/conftest.py',
    },
  )
  expect(evidence.get('verifier-stdout.log')?.toString().split('\n')).toEqual([
    'theirs',
    'theirs',
    'mine',
    'conftest.py',
    'src.py',
    'sub',
    'tests',
    '',
  ])
})

test('the tests receive the variables of the evaluator and of the task, with secrets resolved by name', async (context) => {
  const config = { env: { A: 'plain', B: '${KEY}', C: '${NONE:-else}', D: 'task' } }
  const { evidence } = await grade(context, `echo "$A $B $C $D"; ${writeReward('1')}`, config, { env: { D: 'order' } })
  expect(evidence.get('verifier-stdout.log')?.toString()).toBe('plain a secret else order\n')
  await expect(grade(context, writeReward('1'), { env: { X: '${NONE}' } })).rejects.toThrow(
    'The tests need the variables NONE',
  )
})

test('the paths and the command of the tests can be configured', async (context) => {
  const { result } = await grade(context, 'echo 0.25 > /tmp/out/reward.txt', {
    tests_target: 'tests over here'.replace(/^/, '/tmp/'),
    verifier_dir: '/tmp/out',
  })
  expect(result.outcome_reward).toBe(0.25)
  const other = await grade(context, 'exit 1', { test_command: writeReward('0.75') })
  expect(other.result.outcome_reward).toBe(0.75)
})

test('a task folder without tests and contradictory settings are configuration errors', async () => {
  const create = (config: object) => evaluators.create(evaluators.config.parse({ kind: 'harbor', ...config }), deps)
  await expect(grading.grade({ evaluator: create({ task_dir: grading.dir }) })).rejects.toMatchObject({
    code: 'config.invalid',
  })
  expect(() => create({})).toThrow('set either task_dir or tests_dir')
  expect(() => create({ task_dir: '/a', tests_dir: '/b' })).toThrow('set either task_dir or tests_dir')
  expect(() => create({ tests_dir: '/b', clamp: [1, 0] })).toThrow('must be [lowest, highest]')
})

/** Waits until a command has created the file. */
async function waitForFile(sandbox: Sandbox | undefined, path: string): Promise<void> {
  for (;;) {
    const found = await sandbox?.readFile(path, { maxBytes: 100 }).catch(() => undefined)
    if (found !== undefined) return
    await sleep(20)
  }
}

describeEvaluator('harbor', {
  async setUp(dir) {
    await mkdir(join(dir, 'harbor-tests'))
    await writeFile(
      join(dir, 'harbor-tests', 'test.sh'),
      'mkdir -p out; [ "$(cat answer)" = 42 ] && echo 1 > out/reward.txt || echo 0 > out/reward.txt',
    )
    // Below the workdir, so that tests and rewards stay in the sandbox even if it shares the root folder of the machine.
    const config = (workdir: string) => ({
      kind: 'harbor',
      max_files: 1000,
      tests_dir: join(dir, 'harbor-tests'),
      tests_target: `${workdir}/tests`,
      verifier_dir: `${workdir}/out`,
    })
    return {
      config: config('/workspace'),
      cases: [
        { title: 'a correct answer', agent: 'echo 42 > answer', reward: 1 },
        { title: 'a wrong answer', agent: 'echo 41 > answer', reward: 0 },
        { title: 'no answer', reward: 0 },
        {
          title: 'a reward and tests of the agent',
          agent: 'mkdir out evil; echo 1 > out/reward.json; echo true > evil/test.sh; ln -s evil tests',
          reward: 0,
        },
      ],
      slow: {
        config: { ...config('/workspace'), test_command: 'touch begun; sleep 600' },
        begun: (sandbox) => waitForFile(sandbox, 'begun'),
      },
    }
  },
})
