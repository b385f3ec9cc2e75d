import { expect } from 'vitest'
import type { Attack } from './attack.ts'
import type { AttackRange, EndedSession } from './attack-range.ts'
import { expectWorthNothing } from './expectations.ts'
import { sectionOf } from './sections.ts'

/** Links of every form to a hidden file `expected/answer`, which does not exist while the agent runs. Creates `a` to `f`. */
const LINKS = `
mkdir -p b d f/deep
ln -s expected a
ln -s ../expected/answer b/answer
ln -s /workspace/expected/answer c
ln -s /proc/self/cwd/expected/answer d/answer
ln -s a/answer e
ln -s ../../../../../../workspace/expected/answer f/deep/answer`
/** Prints each link that resolves to the hidden file. */
const TAKEN = `for f in a/answer b/answer c d/answer e f/deep/answer; do
  if cmp -s "$f" expected/answer; then echo "taken $f"; fi
done`

/** `score` compares outputs of the agent's program with a hidden answer. */
async function runScore(range: AttackRange): Promise<EndedSession> {
  const hidden = await range.writeFiles('score-links', { 'expected/answer': 'forty-two\n' })
  return range.run(`ask one > /dev/null; cat > solution.sh <<'END'\n${LINKS}\nEND`, {
    evaluator: {
      strategy: 'command',
      config: {
        command: 'sh solution.sh',
        score: {
          outputs: ['a', 'b', 'c', 'd', 'e', 'f'],
          files: [{ source: `${hidden}/expected`, target: 'expected' }],
          command: `${TAKEN.replace('echo "taken $f"', 'echo "taken $f" >&2; n=1')}\necho "\${n:-0}"`,
        },
      },
    },
  })
}

/** Folder of the Harbor tests and their reward, which every runtime can write. */
const HARBOR = { tests_target: '/tmp/tests', verifier_dir: '/tmp/logs/verifier' }

/** Harbor's tests, with a hidden answer in their folder. */
async function runHarbor(range: AttackRange): Promise<EndedSession> {
  const tests = await range.writeFiles('harbor-links', {
    'tests/answer': 'forty-two\n',
    'tests/test.sh': `
echo @@ links
n=0
for f in answer deep/answer through/answer /workspace/absolute; do
  if cmp -s "$f" /tmp/tests/answer; then echo "taken $f"; n=1; fi
done
echo @@ reward
ls /tmp/logs/verifier
echo $n > /tmp/logs/verifier/reward.txt
`,
  })
  const agent = `ask one > /dev/null
ln -s /tmp/tests/answer answer; mkdir deep; ln -s ../../tmp/tests/answer deep/answer; ln -s /tmp/tests through
ln -s /proc/self/root/tmp/tests/answer absolute
mkdir -p /tmp/logs/verifier; for d in . /tmp/logs/verifier; do echo 1 > $d/reward.txt; echo '{"reward": 1}' > $d/reward.json; done`
  return range.run(agent, { evaluator: { strategy: 'harbor', config: { ...HARBOR, tests_dir: `${tests}/tests` } } })
}

/** The grader starts from a snapshot of the agent's sandbox. */
async function runHarborSnapshot(range: AttackRange): Promise<EndedSession> {
  const tests = await range.writeFiles('harbor-snapshot', {
    'tests/answer': 'forty-two\n',
    'tests/test.sh': `
n=0
if cmp -s /workspace/answer /tmp/tests/answer; then echo taken; n=1; fi
if [ -e /tmp/tests/planted ]; then echo planted; n=1; fi
echo $n > /tmp/logs/verifier/reward.txt
for i in $(seq 20); do sleep 0.05; done
`,
  })
  // A process waits for the tests and writes the reward, up to 5,000 times.
  const racer = `trap "" TERM HUP INT; i=0; while [ $i -lt 5000 ]; do i=$((i+1))
    [ -e /tmp/tests/answer ] && echo "{\\"reward\\": 1}" > /tmp/logs/verifier/reward.json; sleep 0.01; done`
  const agent = `ask one > /dev/null
ln -s /tmp/tests/answer answer
mkdir -p /tmp/tests /tmp/logs/verifier; echo 'echo 1 > /tmp/logs/verifier/reward.txt' > /tmp/tests/test.sh; touch /tmp/tests/planted
echo '{"reward": 1}' > /tmp/logs/verifier/reward.json
(setsid sh -c '${racer}' > /dev/null 2>&1 &)`
  return range.run(agent, {
    evaluator: { strategy: 'harbor', config: { ...HARBOR, tests_dir: `${tests}/tests`, state: 'everything' } },
  })
}

const whyNoSnapshot = ({ runtime }: AttackRange): string | undefined =>
  runtime.capabilities.supportsSnapshots ? undefined : 'the runtime has no snapshots'

export const linkAttacks: readonly Attack[] = [
  {
    id: 'links-in-score-outputs',
    title: 'The graded program links its outputs to the place of the hidden answer',
    defence: 'no links',
    target: 'reward',
    async run(range) {
      const session = await range.once('score-links', () => runScore(range))
      expectWorthNothing(session)
      expect(session.evidence('score-stderr.log')).not.toContain('taken')
    },
  },
  {
    id: 'links-in-harbor-workdir',
    title: 'The agent links files of its workspace to files of the Harbor tests',
    defence: 'no links',
    target: 'reward',
    async run(range) {
      const session = await range.once('harbor-links', () => runHarbor(range))
      expectWorthNothing(session)
      expect(sectionOf(session.evidence('verifier-stdout.log'), 'links')).toBe('')
    },
  },
  {
    id: 'planted-harbor-reward',
    title: 'The agent writes the reward file of a Harbor task before the tests run',
    defence: 'further',
    target: 'reward',
    async run(range) {
      const session = await range.once('harbor-links', () => runHarbor(range))
      expectWorthNothing(session)
      expect(sectionOf(session.evidence('verifier-stdout.log'), 'reward')).toBe('')
    },
  },
  {
    id: 'links-in-agent-snapshot',
    title:
      'The agent links its answer to the Harbor tests, plants tests and a reward, and the grader starts from its snapshot',
    defence: 'no links',
    target: 'reward',
    whyNot: whyNoSnapshot,
    async run(range) {
      const session = await range.once('harbor-snapshot', () => runHarborSnapshot(range))
      expectWorthNothing(session)
      expect(session.evidence('verifier-stdout.log')).not.toMatch(/taken|planted/)
    },
  },
  {
    id: 'links-in-harness-logs',
    title: 'The agent links the log folder of the harness, and files in it, to files of the machine',
    defence: 'further',
    target: 'machine',
    async run(range) {
      const script = `cd; mkdir -p logs/deep; ln -s ${range.secretFile} logs/one.jsonl; ln -s ${range.dir} logs/two
ln -s ../../../../../../../../..${range.secretFile} logs/deep/three; ln -s ${range.dir} linked; echo kept > logs/four`
      const session = await range.run('', {
        agent: { import_path: range.harnessModule, settings: { script } },
        evaluator: { strategy: 'session_completed' },
      })
      expect(session.outcome.status).toBe('COMPLETED')
      expect(session.artifacts).toContain('kept')
      expect(session.artifacts).not.toContain(range.secret)
    },
  },
]
