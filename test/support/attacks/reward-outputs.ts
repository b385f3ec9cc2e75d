import { expect } from 'vitest'
import type { Attack, AttackTitle } from './attack.ts'
import type { AttackRange, EndedSession } from './attack-range.ts'
import { expectGraded, partsOf } from './expectations.ts'

/** A folder of the agent, graded by a separate part of a `weighted` evaluator. */
interface OddOutput extends AttackTitle {
  script: string
  config?: Record<string, unknown>
}

/** Compares an output of the graded program with a hidden file. */
const SCORED = {
  command: 'sh program.sh',
  score: { outputs: ['out'], command: 'timeout 5 cmp -s out expected && echo 1 || echo 0' },
}

const outputs: readonly OddOutput[] = [
  {
    id: 'pipe-as-output',
    title: 'The agent leaves a named pipe, so that whoever reads it waits',
    defence: 'further',
    target: 'reward',
    script: 'mkfifo pipe',
  },
  {
    id: 'socket-as-output',
    title: 'The agent leaves a Unix socket',
    defence: 'further',
    target: 'reward',
    script: `perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("socket"))'; ln -s socket link`,
  },
  {
    id: 'sparse-output',
    title: 'The agent leaves a sparse file of 10 TB',
    defence: 'further',
    target: 'reward',
    script: 'truncate -s 10T huge || truncate -s 1T huge || truncate -s 100G huge',
  },
  {
    id: 'deep-tree',
    title: 'The agent leaves folders in folders, deeper than a path can be long',
    defence: 'further',
    target: 'reward',
    script: `perl -e 'for (1..1200) { mkdir "d" x 10; chdir "d" x 10 or last }'`,
  },
  {
    id: 'too-many-files',
    title: 'The agent leaves more files than are collected',
    defence: 'further',
    target: 'reward',
    script: 'seq 1500 | xargs touch',
    config: { max_files: 1000 },
  },
  {
    id: 'link-loops',
    title: 'The agent leaves links in circles, chains of links and a link to its own parent',
    defence: 'further',
    target: 'reward',
    script:
      'ln -s b a; ln -s a b; ln -s . self; ln -s .. up; ln -s self/self/self/up/up chain; for i in $(seq 60); do ln -s link$i link$((i+1)); done',
  },
  {
    id: 'pipe-as-scored-output',
    title: 'The graded program leaves a named pipe as its output',
    defence: 'further',
    target: 'reward',
    script: `echo 'mkfifo out' > program.sh`,
    config: SCORED,
  },
  {
    id: 'device-as-scored-output',
    title: 'The graded program links its output to a device that never ends',
    defence: 'further',
    target: 'reward',
    script: `echo 'ln -s /dev/zero out' > program.sh`,
    config: SCORED,
  },
]

function runOutputs(range: AttackRange): Promise<EndedSession> {
  const write = outputs.map(({ id, script }) => `(mkdir ${id}; cd ${id}; ${script}) 2>&1`)
  const parts = outputs.map(({ id, config }) => ({
    name: id,
    strategy: 'command',
    config: { paths: [id], cwd: id, command: 'test -e solved', timeout_seconds: 20, ...config },
  }))
  return range.run(`ask one > /dev/null\n${write.join('\n')}`, {
    evaluator: { strategy: 'weighted', config: { parts } },
    budgets: { evaluate: 120 },
  })
}

export const outputAttacks: readonly Attack[] = outputs.map(({ script: _, config: __, ...about }) => ({
  ...about,
  async run(range) {
    const session = await range.once('outputs', () => runOutputs(range))
    expectGraded(session)
    expect(partsOf(session)[about.id]).toMatchObject({ reward: 0 })
  },
}))
