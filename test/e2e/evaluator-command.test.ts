import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { evaluators } from '../../src/trajectory/evaluators/index.ts'
import { Grading, type Graded, type GradeOptions } from '../support/grade.ts'

const deps = { now: Date.now, secret: () => undefined, mayCall: () => true }

describe('the evaluator command', { timeout: 60_000 }, () => {
  let grading: Grading
  beforeAll(async () => {
    grading = await Grading.start()
  })
  afterAll(() => grading[Symbol.asyncDispose]())

  const grade = (config: object, options: Omit<GradeOptions, 'evaluator'> = {}): Promise<Graded> => {
    const evaluator = evaluators.create(evaluators.config.parse({ kind: 'command', ...config }), deps)
    return grading.grade({ ...options, evaluator })
  }
  const rewardOf = async (config: object, options: Omit<GradeOptions, 'evaluator'> = {}) =>
    (await grade(config, options)).result.outcome_reward

  test('reads the reward from the exit code, and stores the output of the command', async () => {
    const { result, evidence } = await grade(
      { command: 'echo "$WHO says $(cat answer)"; echo no >&2; exit 4' },
      { agent: 'echo hi > answer', env: { WHO: 'grader' } },
    )
    expect(result).toMatchObject({ outcome_reward: 0, metadata: { exit_code: 4 } })
    expect(String(evidence.get('command-stdout.log'))).toBe('grader says hi\n')
    expect(String(evidence.get('command-stderr.log'))).toBe('no\n')
  })

  test('reads the reward from the last line of stdout, a number or JSON', async () => {
    const reward = 'stdout'
    expect(await rewardOf({ command: 'echo noise; echo 0.25; echo', reward })).toBe(0.25)
    expect(await rewardOf({ command: 'echo -1.5e-1', reward, reward_range: [-1, 1] })).toBe(-0.15)
    const output = '{"reward": 0.5, "components": {"style": 1, "tests": 0}, "metadata": {"passed": 3}}'
    const { result } = await grade({ command: `echo '${output}'`, reward })
    expect(result).toMatchObject({
      outcome_reward: 0.5,
      components: { style: 1, tests: 0 },
      metadata: { passed: 3, exit_code: 0 },
    })
  })

  // The unit tests of parseReward() cover the other texts.
  test.each(['nan', '1e999', '1.5', '{"reward": 1, "trace_rewards": [9]}'])(
    'an invalid reward counts as the lowest reward, because the agent can print it: %s',
    async (said) => {
      const { result } = await grade(
        { command: 'sh said', reward: 'stdout' },
        { agent: `echo "echo '${said}'" > said` },
      )
      expect(result).toMatchObject({ outcome_reward: 0, metadata: { missing_reward: expect.any(String) } })
    },
  )

  test('the lowest reward is the lower bound of the declared range', async () => {
    const config = { command: 'echo x', reward: 'stdout', reward_range: [-2, 3] }
    expect(await rewardOf(config)).toBe(-2)
    expect(await rewardOf({ ...config, command: 'sleep 60', timeout_seconds: 0.3 })).toBe(-2)
    expect(await rewardOf({ ...config, command: 'echo 3' })).toBe(3)
    await expect(grade({ ...config, missing_reward: 'fail' })).rejects.toMatchObject({ code: 'evaluator.crashed' })
    const exitCode = { command: 'true', reward_range: [0.5, 3] }
    expect(() => grade(exitCode)).toThrow('must include 0 and 1, the rewards of exit_code')
  })

  test('reads the reward from a file, but never from a file of the agent', async () => {
    const reward = { file: 'out/reward.json' }
    const agent = 'mkdir out; echo 1 > out/reward.json; chmod 444 out/reward.json'
    expect(await rewardOf({ command: 'echo 0.5 > out/reward.json', reward }, { agent })).toBe(0.5)
    const command = 'true'
    const fails = grade({ command, reward, missing_reward: 'fail' }, { agent })
    await expect(fails).rejects.toMatchObject({ code: 'evaluator.crashed' })
    const zero = await grade({ command, reward }, { agent })
    expect(zero.result).toMatchObject({ outcome_reward: 0, metadata: { missing_reward: expect.any(String) } })
  })

  test('a background process of the command cannot change the reward file after the command has ended', async () => {
    const command = '(setsid sh -c "sleep 0.3; echo 1 > reward" &) ; echo 0 > reward'
    expect(await rewardOf({ command, reward: { file: 'reward' } })).toBe(0)
  })

  test('a command that exceeds its time limit gives reward 0 and sets test_timeout', async () => {
    const { result } = await grade({ command: 'sleep 60', timeout_seconds: 0.3 })
    expect(result).toMatchObject({ outcome_reward: 0, metadata: { test_timeout: true } })
  })

  test('a program that the image lacks is a failure of the grader', async () => {
    for (const command of ['no-such-program', 'cd . && no-such-program -x']) {
      await expect(grade({ command }), command).rejects.toMatchObject({
        code: 'evaluator.crashed',
        message: expect.stringContaining('needs the program no-such-program'),
      })
    }
  })

  test.each([
    ['code of the agent that exits with 127', 'sh code', 'echo exit 127 > code'],
    ['code of the agent that exits with 126', 'sh code', 'echo exit 126 > code'],
    [
      'code that imitates the error message of a shell',
      'sh code',
      'echo "echo sh: 1: pytest: not found >&2; exit 127" > code',
    ],
    ['a program of the agent that is not executable', 'exec ./program', 'echo x > program'],
    ['a program that the agent did not write', './program', 'true'],
    ['code that kills the shell of the command', 'sh code; true', "echo 'kill -9 $PPID' > code"],
    ['code that kills every process', 'sh code; sleep 1', "echo 'kill -9 -1' > code"],
  ])('%s gives reward 0', async (_, command, agent) => {
    const { result } = await grade({ command }, { agent })
    expect(result).toMatchObject({ outcome_reward: 0 })
  })

  test('only the configured paths of the agent reach the grader', async () => {
    const agent = 'mkdir kept; echo a > kept/a; echo b > /tmp/left; echo c > outside; (sleep 30 &)'
    const command = 'cat kept/a && [ ! -e /tmp/left ] && [ ! -e outside ]'
    // Sandboxes of kind `local` share /tmp with the machine.
    const isApart = grading.runtime.capabilities.isolatesFiles
    expect(await rewardOf({ paths: ['kept'], command }, { agent })).toBe(isApart ? 1 : 0)
  })

  test('the grader sees the final state of a folder, without removed files and with created files', async () => {
    const prepare = [
      { type: 'exec' as const, command: 'echo old > old; echo both > both; mkdir -p d/.e; echo x > d/.e/f' },
    ]
    const agent = 'rm old; echo new > .new; chmod +x both; ln -s both link; rm -rf d'
    const command =
      '[ ! -e old ] && [ ! -e d ] && [ "$(cat .new)" = new ] && [ -x both ] && [ ! -L link ] && [ "$(cat link)" = both ]'
    expect(await rewardOf({ command }, { prepare, agent })).toBe(1)
  })

  test('excluded paths keep the version of the grader', async () => {
    const prepare = [
      { type: 'exec' as const, command: 'mkdir -p tests/deep; echo own > tests/deep/check; echo code > code' },
    ]
    const exclude = ['tests/**', 'conftest.py']
    const command =
      '[ "$(cat tests/deep/check)" = own ] && [ ! -e conftest.py ] && [ ! -e tests/more ] && [ "$(cat code)" = better ]'
    const tricks = [
      'echo changed > tests/deep/check; echo more > tests/more; echo x > conftest.py',
      'rm -rf tests',
      'rm -rf tests; mkdir other; mkdir other/deep; echo bad > other/deep/check; ln -s other tests',
      'rm -rf tests/deep; echo file > tests/deep',
      'rm tests/deep/check; mkdir tests/deep/check; echo x > tests/deep/check/x',
    ]
    for (const trick of tricks) {
      const agent = `${trick}; echo better > code`
      expect(await rewardOf({ exclude, command }, { prepare, agent }), trick).toBe(1)
    }
  })

  test('compiled Python files of the agent do not reach the grader', async () => {
    const agent = 'mkdir -p a/__pycache__; echo x > a/__pycache__/t.cpython-312.pyc; echo x > a/t.pyc; echo x > a/t.py'
    expect(await rewardOf({ command: '[ ! -e a/__pycache__ ] && [ ! -e a/t.pyc ] && [ -e a/t.py ]' }, { agent })).toBe(
      1,
    )
  })

  test('a folder of the operator replaces the folder of the agent', async () => {
    const tests = join(grading.dir, 'tests')
    await mkdir(tests)
    await writeFile(join(tests, 'check.sh'), '[ ! -e tests/helper ]', { mode: 0o755 })
    const files = [{ source: tests, target: 'tests' }]
    const agent = 'mkdir tests; echo exit 0 > tests/helper'
    expect(await rewardOf({ files, command: 'tests/check.sh' }, { agent })).toBe(1)
  })

  test('the files of the operator are checked before an agent runs', async () => {
    const files = [{ source: join(grading.dir, 'no-such-file'), target: 'x' }]
    const { check } = evaluators.create(evaluators.config.parse({ kind: 'command', command: 'true', files }), deps)
    await expect(check!(async () => {})).rejects.toMatchObject({
      code: 'config.invalid',
      message: expect.stringContaining('no-such-file'),
    })
  })

  test('a missing path gives reward 0 instead of a failure', async () => {
    const { result, graders } = await grade({ paths: ['answer'], command: 'true' })
    expect(result).toMatchObject({ outcome_reward: 0, metadata: { failure: 'workspace.file-missing' } })
    expect(graders).toBe(0)
  })

  describe('links of the agent', () => {
    const hide = async (): Promise<string> => {
      const hidden = join(grading.dir, 'hidden')
      await mkdir(hidden, { recursive: true })
      await writeFile(join(hidden, 'expected'), 'the-hidden-answer')
      return hidden
    }

    test('no link leads to a file that the operator adds to the grader, in the workdir or elsewhere', async (context) => {
      if (!grading.runtime.capabilities.isolatesFiles) return context.skip('/hidden would be a folder of the machine')
      const agent = `
ln -s tests/expected relative; ln -s /workspace/tests/expected absolute; ln -s /hidden/expected outside
ln -s /hidden folder; ln -s /proc/self/root/hidden/expected process; ln -s /proc/self/cwd/tests/expected cwd
mkdir d; ln -s .. d/up; ln -s d/up/tests/expected through; ln -s relative chain; ln -s / root; ln -s self self
ln -s "$(printf 'tests/expected\\n')" newline; mkdir locked; ln -s /hidden/expected locked/l; chmod 111 locked
mkdir tests; echo mine > tests/expected; ln tests/expected hard; echo kept > kept; ln -s kept copied`
      const hidden = await hide()
      const { result, evidence } = await grade(
        {
          files: [
            { source: hidden, target: 'tests' },
            { source: hidden, target: '/hidden' },
          ],
          command: `[ "$(cat tests/expected /hidden/expected)" = the-hidden-answerthe-hidden-answer ] || exit 3
[ "$(cat copied)" = kept ] && [ "$(cat hard)" = mine ] || exit 4
[ -z "$(find . -type l)" ] || exit 5
! cat relative absolute outside folder/expected process cwd through chain root/hidden/expected newline locked/l | grep -q hidden`,
        },
        { agent },
      )
      expect(result).toMatchObject({ outcome_reward: 1 })
      const { files } = JSON.parse(String(evidence.get('left-out.json'))) as { files: { path: string; why: string }[] }
      expect(files).toContainEqual({ path: 'outside', why: 'the link points outside of the copied folder' })
      expect(files.map(({ path }) => path)).toEqual(expect.arrayContaining(['process', 'through', 'chain', 'locked/l']))
    })

    test("no link moves the operator's files or exposes them under another name", async () => {
      const hidden = await hide()
      const agent = 'mkdir -p pub/b; ln -s pub a; ln -s ../x tests; mkdir sub; ln -s ../pub sub/c'
      const command = `[ ! -e pub/b/expected ] && [ ! -e pub/expected ] && [ -f a/b/expected ] && [ ! -L a ] &&
[ -f tests/expected ] && [ ! -L tests ] && [ ! -e ../x ] && [ -f sub/c/expected ]`
      const files = ['a/b', 'tests', 'sub/c'].map((target) => ({ source: hidden, target }))
      expect(await rewardOf({ files, command }, { agent })).toBe(1)
    })

    test('links of the task are kept unless the agent changes them', async () => {
      const prepare = [
        { type: 'exec' as const, command: 'ln -s /usr/bin/env tool; mkdir lib; ln -s lib lib64; ln -s lib other' },
      ]
      const agent = 'echo 1 > lib/f; ln -sfn /etc other; ln -s /usr/bin/env mine'
      const command = `[ "$(readlink tool)" = /usr/bin/env ] && [ "$(readlink lib64)" = lib ] && [ "$(cat lib64/f)" = 1 ] &&
[ ! -e other ] && [ ! -L other ] && [ ! -e mine ] && [ ! -L mine ]`
      expect(await rewardOf({ command }, { prepare, agent })).toBe(1)
    })

    test('a configured path that the agent replaced by a link is left out and removed from the grader', async () => {
      const prepare = [{ type: 'exec' as const, command: 'echo old > out; ln -s /usr/bin/env own' }]
      const config = {
        paths: ['out', 'own'],
        command: '[ ! -e out ] && [ ! -L out ] && [ "$(readlink own)" = /usr/bin/env ]',
      }
      const { result, evidence } = await grade(config, { prepare, agent: 'ln -sf /etc/passwd out' })
      expect(result.outcome_reward).toBe(1)
      expect(JSON.parse(String(evidence.get('left-out.json')))).toMatchObject({ count: 1, files: [{ path: 'out' }] })
    })

    test('setuid bits, extended attributes and sockets do not reach the grader; files with unusual names do', async () => {
      const agent = `
cp /bin/true program; chmod 6755 program; echo a > Case; echo b > case; touch 'new
line' "$(printf 'esc\\033')" -- '-rf' '..a'
python3 -c 'import os, socket
try: os.setxattr("program", "user.mark", b"x")
except OSError: pass
socket.socket(socket.AF_UNIX).bind("socket")' || touch no-python`
      const command = `[ "$(stat -c %a program)" = 755 ] && [ ! -e socket ] && [ "$(cat Case case)" = "$(printf 'a\\nb')" ] &&
[ -e 'new
line' ] && [ -e ./-rf ] && [ -e ..a ] && [ -e "$(printf 'esc\\033')" ] &&
{ [ -e no-python ] || python3 -c 'import os; raise SystemExit(len(os.listxattr("program")))'; }`
      expect(await rewardOf({ command }, { agent })).toBe(1)
    })
  })

  describe('with a separate score command', () => {
    const score = {
      outputs: ['out'],
      command: '[ ! -e evil ] && [ "$(cat out)" = 42 ] && echo 1 || echo 0',
    }

    test('the reward comes from a sandbox in which the graded code never ran', async () => {
      const forge = 'echo 1; echo 1 > reward; exit 0'
      expect(await rewardOf({ command: 'sh program > out', score }, { agent: `echo 'echo 42' > program` })).toBe(1)
      const cheat = await grade(
        { command: 'sh program > out', score },
        { agent: `echo evil > evil; echo '${forge}' > program` },
      )
      expect(cheat).toMatchObject({ result: { outcome_reward: 0 }, graders: 2 })
      expect([...cheat.evidence.keys()].toSorted()).toEqual([
        'command-stderr.log',
        'command-stdout.log',
        'score-stderr.log',
        'score-stdout.log',
      ])
    })

    test('output that is missing or cannot be copied gives reward 0', async () => {
      for (const command of ['true', 'mkfifo out', 'truncate -s 20G out']) {
        const { result } = await grade({ command, score })
        expect(result).toMatchObject({ outcome_reward: 0, metadata: { missing_output: expect.any(String) } })
      }
    })

    test('a link as output or inside the output never leads to files of the score sandbox', async () => {
      const expected = join(grading.dir, 'expected')
      await mkdir(expected)
      await writeFile(join(expected, '1'), '42')
      const files = [{ source: expected, target: 'expected' }]
      const compare = 'diff -r out expected > /dev/null && echo 1 || echo 0'
      const attacks: Record<string, string> = {
        'ln -s expected out': 'out is a symbolic link',
        'ln -s /workspace/expected out': 'out is a symbolic link',
        'ln -s /etc/passwd out': 'out is a symbolic link',
        'mkdir out && ln -s ../expected/1 out/1': '',
        'mkdir out && ln -s /workspace/expected/1 out/1': '',
        'mkdir out && ln -s /proc/self/cwd/expected/1 out/1': '',
        'mkdir out && ln -s .. out/up && ln -s up/expected/1 out/1': '',
      }
      for (const [command, missing] of Object.entries(attacks)) {
        const { result } = await grade({ command, score: { ...score, files, command: compare } })
        expect(result.outcome_reward, command).toBe(0)
        if (missing !== '') expect(result.metadata['missing_output'], command).toContain(missing)
      }
      const honest = 'mkdir out && printf 42 > out/real && ln -s real out/1 && ln out/real out/2'
      const same =
        '[ ! -L out/1 ] && cmp out/1 expected/1 && echo 0 > out/2 && cmp out/1 expected/1 && echo 1 || echo 0'
      const { result } = await grade({ command: honest, score: { ...score, files, command: same } })
      expect(result.outcome_reward).toBe(1)
    })
  })
})
