import { mkdir, readdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { expect } from 'vitest'
import { RolloutError } from '../../../src/model/failure.ts'
import { runScript, toProbeSpec } from '../../../src/node/sandbox/runtimes/sandbox-probe.contract.ts'
import type { Attack } from './attack.ts'
import { expectGraded, expectWorthNothing } from './expectations.ts'

const ROUNDS = 8
const LIMITS = { maxBytes: 1024 * 1024, maxFiles: 100 }

/** A daemon that survives the signals it can survive and ends by itself. */
function daemon(loop: string): string {
  return `(setsid bash -c 'trap "" TERM HUP INT; for i in $(seq 4000); do ${loop}; done' > /dev/null 2>&1 &)`
}

export const raceAttacks: readonly Attack[] = [
  {
    id: 'race-with-collection',
    title: 'A daemon of the agent swaps the answer for a link while the workspace is collected and graded',
    defence: 'further',
    target: 'reward',
    async run(range) {
      const hidden = await range.writeFiles('race', { 'tests/expected': 'forty-two\n' })
      const swap =
        'ln -sfn tests/expected answer; [ -e tests/expected ] && cp tests/expected mine; echo 41 > other; mv -T other answer'
      const session = await range.run(`ask one > /dev/null; echo 41 > answer; ${daemon(swap)}; sleep 0.1`, {
        evaluator: {
          strategy: 'command',
          config: {
            files: [{ source: `${hidden}/tests`, target: 'tests' }],
            command:
              'for i in $(seq 40); do cmp -s answer tests/expected && exit 0; [ -e mine ] && exit 0; sleep 0.02; done; exit 1',
          },
        },
      })
      expectWorthNothing(session)
    },
  },
  {
    id: 'race-with-scoring',
    title:
      'A daemon of the graded program swaps the output for a link and waits for the hidden answer while outputs are scored',
    defence: 'further',
    target: 'reward',
    async run(range) {
      const hidden = await range.writeFiles('race-score', { expected: 'forty-two\n' })
      const swap =
        'ln -sfn expected link; mv -T link out; [ -e expected ] && cp expected out; echo 41 > other; mv -T other out; echo 1 > verdict'
      const program = `echo 41 > out; ${daemon(swap)}; sleep 0.1`
      const session = await range.run(`ask one > /dev/null; cat > program.sh <<'END'\n${program}\nEND`, {
        evaluator: {
          strategy: 'command',
          config: {
            command: 'bash program.sh',
            score: {
              outputs: ['out'],
              files: [{ source: join(hidden, 'expected'), target: 'expected' }],
              command:
                'for i in $(seq 40); do cmp -s out expected && echo 1 && exit; [ -e verdict ] && echo 1 && exit; sleep 0.02; done; echo 0',
            },
          },
        },
      })
      expectWorthNothing(session)
    },
  },
  {
    id: 'race-with-copying',
    title: 'A live process swaps a file for a link, a pipe, a folder and a growing file while the node copies it',
    defence: 'further',
    target: 'machine',
    async run(range) {
      const spec = toProbeSpec('attack')
      await using sandbox = await range.runtime.start(spec, AbortSignal.timeout(60_000))
      const swap = `mkdir race; cd race; for i in $(seq 20000); do
        echo own > file; mv -T file one; rm -rf one; ln -s ${range.secretFile} one; rm one; mkfifo one; rm one
        mkdir one; ln -s ${range.dir} one/in; rm -rf one; head -c 2000000 /dev/zero > one; rm one; done`
      const racing = await sandbox.exec({ command: ['bash', '-c', swap], leftovers: 'end', timeoutMs: 60_000 })
      const folder = join(range.dir, 'raced')
      await mkdir(folder)
      for (let round = 0; round < ROUNDS; round += 1) {
        const target = join(folder, String(round))
        const refusal = await sandbox
          .download('race', target, LIMITS, AbortSignal.timeout(30_000))
          .catch((e: unknown) => e)
        if (refusal !== undefined) expect(refusal).toBeInstanceOf(RolloutError)
        for (const entry of await readdir(folder, { recursive: true, withFileTypes: true }))
          if (entry.isFile())
            expect(await readFile(join(entry.parentPath, entry.name), 'latin1')).not.toContain(range.secret)
        const read = await sandbox.readFile('race/one', { maxBytes: 100 }).then(String, () => '')
        expect(read).not.toContain(range.secret)
        await rm(target, { recursive: true, force: true })
      }
      await racing.kill()
      expect((await runScript(sandbox, 'echo alive')).stdout).toBe('alive\n')
    },
  },
  {
    id: 'race-with-the-end',
    title: 'The agent ends while 20 of its streams are in flight and a daemon goes on calling the model',
    defence: 'further',
    target: 'training data',
    async run(range) {
      const session = await range.run(
        `ask one > /dev/null
for i in $(seq 20); do ask "SCRIPT:slow in flight" '"stream":true,"max_tokens":40' > /dev/null 2>&1 & done
export rest at base; export -f ask send dial
(setsid bash -c 'trap "" TERM HUP INT; for i in $(seq 400); do ask "call-of-a-daemon"; sleep 0.05; done' > /dev/null 2>&1 &)
sleep 0.3; exit 0`,
        { evaluator: { strategy: 'session_completed' } },
      )
      expectGraded(session)
      const record = await range.recorded(session)
      expect(record).toMatchObject({ complete: true, incompleteReasons: [] })
      for (const { response, delivery } of record.turns)
        for (const choice of response?.choices ?? [])
          if (delivery === 'delivered') expect([...range.sampled]).toContain(JSON.stringify([...choice.ids]))
      const before = range.engine.textsWith('call-of-a-daemon').length
      await range.run('ask two > /dev/null', {})
      expect(range.engine.textsWith('call-of-a-daemon').length).toBe(before)
    },
  },
  {
    id: 'race-with-a-warm-start',
    title: 'The agent rewrites prepared files while another session of the same task starts from them',
    defence: 'further',
    target: 'neighbour',
    async run(range) {
      const prepare = [
        { type: 'exec', command: 'mkdir -p task && echo clean > task/file && echo clean > task/.hidden' },
      ]
      const poison = range.submit(
        `ask one > /dev/null; for i in $(seq 300); do echo poisoned > task/file; echo poisoned > task/.hidden; ln -sfn /etc/passwd task/link; rm -rf task; mkdir task; echo poisoned > task/file; done; sleep 600`,
        { runtime: { prepare } },
      )
      try {
        const next = await range.run('ask one > /dev/null; cat task/file task/.hidden; ls -A task', {
          runtime: { prepare },
        })
        expect(next.stdout).toBe('clean\nclean\n.hidden\nfile\n')
      } finally {
        poison.cancel('the attack is over')
        await poison.outcome
      }
    },
  },
]
