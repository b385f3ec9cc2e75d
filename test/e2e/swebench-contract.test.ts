import { setTimeout as sleep } from 'node:timers/promises'
import { describeEvaluator } from '../../src/trajectory/evaluators/evaluator.contract.ts'
import { createTinyRepository } from '../support/tiny-repository.ts'

/** Tests in shell, which every sandbox has, with output in the format of pytest. */
const RUN = `. ./code.sh
bad=0
check() { if [ "$2" = "$3" ]; then echo "PASSED tests/code.sh::$1"; else echo "FAILED tests/code.sh::$1"; bad=1; fi; }
check zero "$(add 1 0)" 1
`
const FIX = `echo 'add() { echo $(( $1 + $2 )); }' > code.sh`

describeEvaluator('swebench', {
  setUp(dir) {
    const repository = createTinyRepository(dir, {
      'code.sh': 'add() { echo $(( $1 - $2 )); }\n',
      'tests/code.sh': `${RUN}exit $bad\n`,
    })
    const config = {
      kind: 'swebench',
      instance: {
        instance_id: 'tiny__shell-1',
        base_commit: repository.baseCommit,
        patch: repository.patchOf({ 'code.sh': 'add() { echo $(( $1 + $2 )); }\n' }),
        test_patch: repository.patchOf({ 'tests/code.sh': `${RUN}check add "$(add 2 3)" 5\nexit $bad\n` }),
        FAIL_TO_PASS: ['tests/code.sh::add'],
        PASS_TO_PASS: ['tests/code.sh::zero'],
      },
      test_cmd: 'bash',
      log_parser: 'pytest',
      max_patch_bytes: 1_000_000,
    }
    const prepare = [
      { type: 'upload_file' as const, source: repository.archive, target: '/tmp/repository.tar' },
      { type: 'exec' as const, command: 'tar xf /tmp/repository.tar' },
    ]
    return {
      config,
      cases: [
        { title: 'the gold patch', prepare, agent: FIX, reward: 1 },
        { title: 'no patch', prepare, reward: 0 },
        { title: 'a wrong patch', prepare, agent: `echo 'add() { echo 5; }' > code.sh`, reward: 0 },
      ],
      slow: {
        config: { ...config, test_cmd: 'touch begun; sleep 600; bash' },
        async begun(sandbox) {
          while ((await sandbox?.readFile('begun', { maxBytes: 10 }).catch(() => undefined)) === undefined)
            await sleep(20)
        },
      },
    }
  },
})
