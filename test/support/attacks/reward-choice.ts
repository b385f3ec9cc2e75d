import { expect } from 'vitest'
import type { Attack, AttackTitle } from './attack.ts'
import type { AttackRange, EndedSession } from './attack-range.ts'
import { expectGraded, expectWorthNothing, partsOf } from './expectations.ts'

/** A program of the agent, graded by a separate part of a `weighted` evaluator. */
interface GradedProgram extends AttackTitle {
  script: string
  config: Record<string, unknown>
}

const programs: readonly GradedProgram[] = [
  {
    id: 'exit-code-126',
    title: 'The graded program ends with exit code 126, as if it could not be run',
    defence: 'always graded',
    target: 'reward',
    script: 'exit 126',
    config: {},
  },
  {
    id: 'exit-code-127',
    title: 'The graded program ends with exit code 127, as if it did not exist',
    defence: 'always graded',
    target: 'reward',
    script: 'exit 127',
    config: {},
  },
  {
    id: 'junk-reward',
    title: 'The graded program prints a word in the place of the reward',
    defence: 'always graded',
    target: 'reward',
    script: 'echo banana',
    config: { reward: 'stdout' },
  },
  {
    id: 'nan-reward',
    title: 'The graded program prints NaN in the place of the reward',
    defence: 'always graded',
    target: 'reward',
    script: 'echo NaN',
    config: { reward: 'stdout' },
  },
  {
    id: 'infinite-reward',
    title: 'The graded program prints 1e999 as its reward',
    defence: 'bounded rewards',
    target: 'reward',
    script: 'echo 1e999',
    config: { reward: 'stdout' },
  },
  {
    id: 'foreign-digits',
    title: 'The graded program prints a reward in digits of another script',
    defence: 'further',
    target: 'reward',
    script: `printf '\\357\\274\\221\\n'`,
    config: { reward: 'stdout' },
  },
  {
    id: 'killed-grader',
    title: 'The graded program kills every process of the sandbox that grades it',
    defence: 'further',
    target: 'reward',
    script: 'kill -9 $PPID; kill -9 -1; exit 0',
    config: {},
  },
  {
    id: 'endless-program',
    title: 'The graded program does not end',
    defence: 'further',
    target: 'reward',
    script: 'trap "" TERM INT HUP; sleep 600',
    config: { timeout_seconds: 1 },
  },
  {
    id: 'flood-before-the-verdict',
    title: 'The graded program prints 24 MB before the last line',
    defence: 'further',
    target: 'reward',
    script: 'head -c 25165824 /dev/zero; echo; echo 1',
    config: { reward: 'stdout' },
  },
]

/** One session whose `weighted` evaluator grades every program in a separate sandbox. */
function runPrograms(range: AttackRange): Promise<EndedSession> {
  const write = programs.map(({ id, script }) => `mkdir ${id}; cat > ${id}/program.sh <<'END'\n${script}\nEND`)
  const parts = programs.map(({ id, config }) => ({
    name: id,
    strategy: 'command',
    config: { paths: [id], cwd: id, command: 'sh program.sh', timeout_seconds: 20, ...config },
  }))
  return range.run(`ask one > /dev/null\n${write.join('\n')}`, {
    evaluator: { strategy: 'weighted', config: { parts } },
    budgets: { evaluate: 120 },
  })
}

const programAttacks: readonly Attack[] = programs.map(({ script: _, config: __, ...about }) => ({
  ...about,
  async run(range) {
    const session = await range.once('programs', () => runPrograms(range))
    expectGraded(session)
    expect(partsOf(session)[about.id]).toMatchObject({ reward: 0 })
  },
}))

const NO_REWARD = { strategy: 'command', config: { command: 'test -e solved' } }
const REPOSITORY_STEP = {
  type: 'exec',
  command:
    'mkdir -p repo/tests && cd repo && echo one > code.sh && echo FAIL > tests/t.sh && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm one',
}

export const choiceAttacks: readonly Attack[] = [
  ...programAttacks,
  {
    id: 'reward-out-of-range',
    title: 'The graded program prints a reward of a million',
    defence: 'bounded rewards',
    target: 'reward',
    async run(range) {
      const session = await range.run(`ask one > /dev/null; echo 'echo 1000000' > program.sh`, {
        evaluator: { strategy: 'command', config: { command: 'sh program.sh', reward: 'stdout' } },
      })
      expectGraded(session)
      expect(session.outcome.grade!.outcome_reward).toBeLessThanOrEqual(1)
    },
  },
  {
    id: 'workspace-replaced-by-a-file',
    title: 'The agent replaces its workspace by a file',
    defence: 'always graded',
    target: 'reward',
    async run(range) {
      const session = await range.run(
        `ask one > /dev/null; cd /; rm -rf /workspace; echo x > /workspace || { rm -rf /workspace/* /workspace/.[!.]*; mkfifo /workspace/pipe; }`,
        { evaluator: NO_REWARD },
      )
      expectWorthNothing(session)
    },
  },
  {
    id: 'unreadable-workspace',
    title: 'The agent makes its workspace unreadable and unwritable',
    defence: 'always graded',
    target: 'reward',
    async run(range) {
      const session = await range.run(
        'ask one > /dev/null; mkdir -p one/two; echo x > one/two/three; chmod 000 one/two/three one/two one; chmod 000 .',
        { evaluator: NO_REWARD },
      )
      expectWorthNothing(session)
    },
  },
  {
    id: 'blocked-verifier-folder',
    title: 'The agent puts files in the places where the Harbor tests and their reward go',
    defence: 'always graded',
    target: 'reward',
    whyNot: ({ runtime }) => (runtime.capabilities.supportsSnapshots ? undefined : 'the runtime has no snapshots'),
    async run(range) {
      const tests = await range.writeFiles('blocked', {
        'tests/test.sh': 'echo 0 > /workspace/out/verifier/reward.txt',
      })
      const session = await range.run(
        `ask one > /dev/null; echo x > out; chmod 000 out; mkdir -p held/inner; chmod 000 held/inner held
mkdir -p /tmp/tests; echo x > /tmp/tests/test.sh; chmod 000 /tmp/tests; chmod 555 .`,
        {
          evaluator: {
            strategy: 'harbor',
            config: {
              tests_dir: `${tests}/tests`,
              tests_target: '/tmp/tests',
              verifier_dir: '/workspace/out/verifier',
              state: 'everything',
            },
          },
        },
      )
      expectWorthNothing(session)
    },
  },
  {
    id: 'crafted-git-index',
    title: 'The agent writes a git index, objects and a HEAD that git cannot read',
    defence: 'always graded',
    target: 'reward',
    async run(range) {
      const session = await range.run(
        `ask one > /dev/null; cd repo; printf 'DIRC\\0\\0\\0\\2\\377\\377\\377\\377' > .git/index; echo x > .git/HEAD
find .git/objects -type f -exec chmod u+w {} + -exec sh -c 'for f; do echo x > "$f"; done' sh {} +
printf '[core]\\n\\trepositoryformatversion = 99\\n[extensions]\\n\\tunknown = true\\n' > .git/config`,
        {
          runtime: { prepare: [REPOSITORY_STEP] },
          evaluator: {
            strategy: 'test_on_output',
            config: {
              repo_dir: 'repo',
              test_command: 'echo "FAILED tests/t.sh::one"; exit 1',
              expected_output_json: { 'tests/t.sh::one': 'PASSED' },
            },
          },
        },
      )
      expectWorthNothing(session)
    },
  },
  {
    id: 'last-call-that-breaks-the-engine',
    title: 'The agent ends with a call to which the engine can only answer 500',
    defence: 'always graded',
    target: 'reward',
    async run(range) {
      const session = await range.run(
        `ask one > /dev/null; ask 'half \\ud800 a surrogate' | status; ask two '"bad_words":["\\ud800"]' | status; exit 1`,
        { evaluator: NO_REWARD },
      )
      expectWorthNothing(session)
    },
  },
  {
    id: 'killed-sandbox',
    title: 'The agent kills every process that it can see, the first process of its sandbox too',
    defence: 'further',
    target: 'reward',
    async run(range) {
      const session = await range.run(
        `ask one > /dev/null; perl -e 'kill "KILL", 1; kill "STOP", 1; kill "KILL", getppid; kill "KILL", -1; kill "KILL", $_ for grep { $_ != $$ } map { m{/proc/([0-9]+)$} } glob "/proc/*"'; kill -9 $$`,
        { evaluator: NO_REWARD },
      )
      expectWorthNothing(session)
    },
  },
  {
    id: 'removed-system',
    title: 'The agent removes every file that it may remove',
    defence: 'further',
    target: 'reward',
    async run(range) {
      const session = await range.run(
        `ask one > /dev/null; perl -e 'sub r { my $d = shift; opendir(my $h, $d) or return; for (readdir $h) { next if /^\\.\\.?$/; my $p = "$d/$_"; next if $p =~ m{^/+(proc|sys|dev)$}; if (-d $p && !-l $p) { r($p); rmdir $p } else { unlink $p } } } r("/$_") for qw(workspace tmp polar home root var etc run srv mnt); unlink glob "/usr/bin/{sh,bash,tar,cat,head,rm,mkdir,chmod,env}"' 2> /dev/null; :`,
        { evaluator: NO_REWARD },
      )
      expectWorthNothing(session)
    },
  },
]
