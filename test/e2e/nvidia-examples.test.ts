import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import { findApptainer } from '../support/apptainer.ts'
import { ANSWER_SCRIPT } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, taskOf } from '../support/node-stack.ts'
import { startPodman } from '../support/podman.ts'
import { createTinyRepository, type TinyRepository } from '../support/tiny-repository.ts'

// Tasks in the form of NVIDIA Polar's examples, on each runtime that the examples name and on the default runtime.
const WORKSPACE = '/polar/session/workspace'
const TESTBED = '/polar/session/testbed'

const podman = await startPodman()
const found = findApptainer()

interface Backend {
  name: string
  /** Why this backend cannot run on this machine. Undefined if it can. */
  missing?: string
  settings?: Record<string, Record<string, unknown>>
  runtime: Record<string, unknown>
}

const image = typeof podman === 'string' ? '' : podman.image
const socket = typeof podman === 'string' ? '' : podman.socket
const program = typeof found === 'string' ? [] : found.program
const backends: Backend[] = [
  {
    name: 'docker',
    ...(typeof podman === 'string' ? { missing: podman } : {}),
    settings: { docker: { socket, pull: 'never' } },
    runtime: { backend: 'docker', image },
  },
  {
    name: 'apptainer with an image of the Docker engine',
    ...(typeof podman === 'string' ? { missing: podman } : typeof found === 'string' ? { missing: found } : {}),
    settings: { apptainer: { program, dockerSocket: socket } },
    runtime: { backend: 'apptainer', image: `docker-daemon:${image}` },
  },
  { name: 'the default sandbox', runtime: {} },
]

const STARTER = 'echo $(( $1 - $2 ))\n'
const FIX = `printf 'echo $(( $1 + $2 ))\\n' > calculator.sh`
/** Fails unless the environment variables and folders that tasks of NVIDIA Polar expect exist. */
const CHECK_ENVIRONMENT = [
  `[ "$SESSION_DIR" = /polar/session ] && [ "$ARTIFACTS_DIR" = /polar/session/artifacts ]`,
  `[ "$LOGS_DIR" = /polar/session/logs ] && [ "$AGENT_LOG_DIR" = /polar/session/logs/agent ]`,
  `[ "$TASK_ID" = theirs ] && [ -n "$SESSION_ID" ] && [ -n "$GOOGLE_API_URL" ]`,
  `[ "$(cat /polar/session/prepared)" = "$SESSION_ID" ]`,
  `echo seen > "$AGENT_LOG_DIR/agent.txt" && echo kept > "$ARTIFACTS_DIR/file"`,
].join(' && ')
const agentOf = (work: string): string => bashAgent(`${CHECK_ENVIRONMENT} || exit 9; call hello > /dev/null; ${work}`)

const NULLS = { source: null, target: null, command: null, cwd: null, env: null }
const PREPARE = {
  type: 'exec',
  command: `rm -rf ${WORKSPACE} && mkdir -p ${WORKSPACE} /polar/session/logs/agent && cd ${WORKSPACE} && git init -q && git config user.email a@b && git config user.name a && echo "$SESSION_ID" > /polar/session/prepared`,
}

describe.each(backends)('$name', { timeout: 600_000 }, ({ missing, settings, runtime }) => {
  let dir: string
  let stack: NodeStack | undefined
  let repository: TinyRepository
  const unusable = missing

  beforeAll(async () => {
    dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-examples-'))
    repository = createTinyRepository(dir, {
      'calculator.sh': STARTER,
      'tests/run.sh': `[ "$(sh calculator.sh 2 2)" = 4 ] && echo PASSED tests/run.sh::adds || echo FAILED tests/run.sh::adds\n[ "$(sh calculator.sh 5 0)" = 5 ] && echo PASSED tests/run.sh::zero || echo FAILED tests/run.sh::zero\n`,
    })
    await writeFile(join(dir, 'calculator.sh'), STARTER)
    await writeFile(join(dir, 'test_calculator.sh'), '[ "$(sh calculator.sh 2 2)" = 4 ]\n')
    await writeFile(join(dir, 'stars.png'), Buffer.from([0x89, 0x50, 0x4e, 0x47]))
    if (unusable !== undefined) return
    // On a busy machine unpacking an image takes minutes.
    const budgets = { init: 500, evaluate: 500 }
    stack = await NodeStack.start({
      script: ANSWER_SCRIPT,
      budgets,
      ...(settings === undefined ? {} : { runtimeSettings: settings }),
    })
  }, 240_000)
  afterAll(async () => {
    await stack?.[Symbol.asyncDispose]()
    await rm(dir, { recursive: true, force: true })
  })

  async function run(task: Record<string, unknown>, context: TestContext): Promise<SessionOutcome> {
    if (stack === undefined || unusable !== undefined) return context.skip(unusable)
    return stack.node.submit(orderOf(taskOf({ task_id: 'theirs', num_samples: 1, timeout_seconds: 500, ...task })))
      .outcome
  }
  const upload = (name: string) => ({
    ...NULLS,
    type: 'upload_file',
    source: join(dir, name),
    target: `${WORKSPACE}/${name}`,
  })
  const commit = { ...NULLS, type: 'exec', command: `cd ${WORKSPACE} && git add -A && git commit -qm initial` }
  const agent = (work: string) => ({ harness: 'shell', custom_shell: { command: agentOf(work) } })

  function calculator(work: string): Record<string, unknown> {
    return {
      runtime: {
        ...runtime,
        prepare: [PREPARE, upload('test_calculator.sh'), upload('calculator.sh'), commit],
        network: 'none',
        workdir: WORKSPACE,
      },
      agent: agent(work),
      evaluator: {
        strategy: 'test_on_output',
        config: {
          repo_dir: WORKSPACE,
          patch_command: `cd ${WORKSPACE} && git add -A && git diff --cached --binary`,
          test_command: `cd ${WORKSPACE} && sh test_calculator.sh && echo 'PASSED test_calculator'`,
          apply_timeout: 60,
          test_timeout: 60,
          expected_output_json: { test_calculator: 'PASSED' },
          exclude_patterns: ['node_modules/**', '**/node_modules/**', '.codex/**'],
        },
        refresh_runtime: true,
      },
    }
  }

  test('a calculator task is run and graded', async (context) => {
    expect(await run(calculator(FIX), context)).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
    expect(await run(calculator('true'), context)).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 0 } })
  })

  test('a task with a picture as input runs', async (context) => {
    const outcome = await run(
      {
        runtime: { ...runtime, prepare: [PREPARE, upload('stars.png')], network: 'none', workdir: WORKSPACE },
        agent: agent(`[ -s stars.png ] && echo 4 > answer.txt`),
        evaluator: { strategy: 'session_completed' },
      },
      context,
    )
    expect(outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
  })

  test('a SWE task is graded in a sandbox without the workspace', async (context) => {
    const stage = `mkdir -p ${TESTBED} && tar xf /tmp/repository.tar -C ${TESTBED}`
    const archive = { type: 'upload_file', source: repository.archive, target: '/tmp/repository.tar' }
    const copy = `rm -rf ${WORKSPACE} && mkdir -p ${WORKSPACE} "$HOME/.venv/bin" && cp -a ${TESTBED}/. ${WORKSPACE}/ && cd ${WORKSPACE} && (git reset --hard || true) && echo "$SESSION_ID" > /polar/session/prepared`
    const instance = {
      instance_id: 'tiny__calculator-1',
      repo: 'tiny/calculator',
      base_commit: repository.baseCommit,
      patch: repository.patchOf({ 'calculator.sh': 'echo $(( $1 + $2 ))\n' }),
      test_patch: '',
      FAIL_TO_PASS: ['tests/run.sh::adds'],
      PASS_TO_PASS: ['tests/run.sh::zero'],
      test_cmd: 'sh tests/run.sh',
      log_parser: 'pytest',
    }
    const swe = (work: string) => ({
      runtime: {
        ...runtime,
        prepare: [archive, { type: 'exec', command: `${stage} && ${copy}` }],
        eval_prepare: [archive, { type: 'exec', command: stage }],
        env: { HOME: '/polar/session/home' },
        network: 'none',
        workdir: WORKSPACE,
      },
      agent: agent(work),
      evaluator: {
        strategy: 'swebench_harness',
        refresh_runtime: true,
        config: {
          repo_dir: TESTBED,
          patch_command: `cd ${WORKSPACE} && git add -A && git diff --cached --binary`,
          instance,
          exclude_patterns: ['.claude/**', '$HOME/**'],
        },
      },
    })
    expect(await run(swe(FIX), context)).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
    expect(await run(swe('echo x > other.txt'), context)).toMatchObject({ grade: { outcome_reward: 0 } })
  })

  test('direct_exec_init_command runs before the first preparation step, on Apptainer only', async (context) => {
    const isRun = runtime['backend'] === 'apptainer'
    const check = { type: 'exec', command: `${isRun ? '' : '! '}[ -e /polar/session/init ]` }
    const keep = { type: 'exec', command: 'echo "$SESSION_ID" > /polar/session/prepared' }
    const init = 'echo "$SESSION_DIR" > /polar/session/init'
    const outcome = await run(
      {
        runtime: { ...runtime, prepare: [check, keep], direct_exec_init_command: init, network: 'none' },
        agent: agent('true'),
        evaluator: { strategy: 'session_completed' },
      },
      context,
    )
    expect(outcome).toMatchObject({ status: 'COMPLETED' })
  })

  test('the failure of a preparation step without network names runtime.allow_internet', async (context) => {
    const failing = { type: 'exec', command: 'echo no host >&2; exit 1' }
    const outcome = await run({ runtime: { ...runtime, prepare: [failing] }, agent: agent('true') }, context)
    expect(outcome).toMatchObject({
      failure: {
        code: 'runtime.prepare-failed',
        message: expect.stringMatching(/no host[^]*Set runtime\.allow_internet to true/) as unknown,
      },
      warnings: [expect.stringContaining('runtime.allow_internet') as unknown],
    })
  })
})

afterAll(async () => {
  if (typeof podman !== 'string') await podman[Symbol.asyncDispose]()
  if (typeof found !== 'string') found[Symbol.dispose]()
})
