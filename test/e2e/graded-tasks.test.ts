import { readdirSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import { loadHarborTask } from '../../src/node/import/harbor-task.ts'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { evaluators } from '../../src/trajectory/evaluators/index.ts'
import { findLogParser } from '../../src/trajectory/evaluators/swebench/log-parsers.ts'
import { FOOLING, isFooled } from '../support/careless-grader.ts'
import { Grading, type GradeOptions } from '../support/grade.ts'
import {
  goldScript,
  loadCheats,
  loadGradedTasks,
  makeRepository,
  toSwebenchRow,
  writeHarborTask,
  type GradedTask,
} from '../support/graded-tasks.ts'
import { findToolchain, type Toolchain } from '../support/graded-toolchain.ts'
import { bubblewrapConfig } from '../support/bubblewrap.ts'

const deps = { now: Date.now, secret: () => undefined, mayCall: () => true }
const tasks = loadGradedTasks()
/** The first task of each test runner is attacked with all cheats; a later one of the same runner only with its own. */
const isAttackedFully = (task: GradedTask) => tasks.find(({ runner }) => runner === task.runner) === task
const cheatsOf = (task: GradedTask) => loadCheats(task).filter(({ isOwn }) => isOwn || isAttackedFully(task))
const agents = (task: GradedTask) => [
  { name: 'the gold patch', script: goldScript(task), reward: 1 },
  { name: 'an agent without changes', script: 'true', reward: 0 },
  ...cheatsOf(task).map(({ name, script }) => ({ name: `the cheat ${name}`, script, reward: 0 })),
]

/** Cheats kill processes and write to the paths of rewards, so they run only in sandboxes with namespaces. */
async function whyNot(): Promise<string | undefined> {
  const dir = await mkdtemp(join(tmpdir(), 'polar-check-'))
  try {
    await using runtime = runtimes.create(runtimes.config.parse(bubblewrapConfig), { dir, now: Date.now })
    const checked = await runtime.check(AbortSignal.timeout(30_000))
    return checked.isUsable ? undefined : checked.reason
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
}
const unusable = await whyNot()

describe.each(tasks.map((task) => [task.name, task] as const))('%s', { timeout: 600_000 }, (_, task) => {
  let grading: Grading | undefined
  let found: ReturnType<typeof findToolchain> | undefined
  let repository = ''
  let baseCommit = ''
  let row: ReturnType<typeof toSwebenchRow>
  let harborDir = ''

  beforeAll(async () => {
    if (unusable !== undefined) return
    found = findToolchain(task)
    grading = await Grading.start('bubblewrap')
    repository = join(grading.dir, 'repository')
    ;({ baseCommit } = makeRepository(task, repository))
    row = toSwebenchRow(task, repository, baseCommit)
    harborDir = join(grading.dir, task.name)
    writeHarborTask(task, harborDir)
  }, 600_000)
  afterAll(() => grading?.[Symbol.asyncDispose]())

  function ready(context: TestContext): { grading: Grading; toolchain: Toolchain } {
    if (unusable !== undefined || grading === undefined || found === undefined) {
      return context.skip(`bubblewrap cannot run here: ${unusable}`)
    }
    return found.toolchain === undefined ? context.skip(found.reason) : { grading, toolchain: found.toolchain }
  }

  test('its base commit is reproducible', async (context) => {
    const again = join(ready(context).grading.dir, 'again')
    expect(makeRepository(task, again)).toEqual({ baseCommit })
  })

  test('FAIL_TO_PASS and PASS_TO_PASS match the test results before and after the gold patch', async (context) => {
    const { grading: sandboxes, toolchain } = ready(context)
    const outcomes = async (patch: string) => {
      const { stdout } = await runTests(sandboxes, toolchain, [patch, row.test_patch], withTests(task))
      return new Map(findLogParser(task.log_parser)!(stdout))
    }
    const [before, after] = [await outcomes(''), await outcomes(task.goldPatch)]
    const names = (status: string) =>
      [...after.keys()].filter((name) => after.get(name) === 'PASSED' && before.get(name) === status).toSorted()
    expect([...after.values()]).toEqual([...after.values()].map(() => 'PASSED'))
    expect({ FAIL_TO_PASS: names('FAILED'), PASS_TO_PASS: names('PASSED') }).toEqual({
      FAIL_TO_PASS: task.FAIL_TO_PASS,
      PASS_TO_PASS: task.PASS_TO_PASS,
    })
  })

  test('the visible tests pass before and after the gold patch', async (context) => {
    const { grading: sandboxes, toolchain } = ready(context)
    for (const patch of ['', task.goldPatch]) {
      const { exitCode, stdout } = await runTests(sandboxes, toolchain, [patch], visibleTests[task.runner])
      expect(exitCode, stdout).toBe(0)
    }
  })

  test.for(isAttackedFully(task) ? FOOLING[task.runner] : [])(
    'the cheat %s fools a careless grader',
    async (name, context) => {
      const { grading: sandboxes, toolchain } = ready(context)
      const cheat = cheatsOf(task).find((each) => each.name === name)!
      expect(await isFooled(sandboxes, task, toolchain, cheat, withTests(task))).toBe(true)
    },
  )

  test('an empty or partial solution fools not even a careless grader', async (context) => {
    const { grading: sandboxes, toolchain } = ready(context)
    const nothing = { name: 'nothing', script: 'true', isOwn: true }
    const half = cheatsOf(task).find(({ name }) => name === 'example-only')!
    for (const agent of [nothing, half]) {
      expect(await isFooled(sandboxes, task, toolchain, agent, withTests(task)), agent.name).toBe(false)
    }
  })

  describe.concurrent.each(['harbor', 'swebench'] as const)('graded by %s', (form) => {
    test.for(agents(task).map((agent) => [agent.name, agent.reward, agent.script] as const))(
      '%s gets reward %d',
      async ([, reward, script], context) => {
        const { grading: sandboxes, toolchain } = ready(context)
        const options =
          form === 'harbor' ? await harborOptions(harborDir, toolchain) : swebenchOptions(row, repository, toolchain)
        const { result, evidence } = await sandboxes.grade({ ...options, agent: script })
        const logs = [...evidence].map(([name, data]) => `${name}: ${data.toString('utf8').slice(-1500)}`).join('\n')
        expect(result.outcome_reward, `${JSON.stringify(result.metadata)}\n${logs}`).toBe(reward)
      },
    )
  })

  /** Runs a test command on the base commit with the patches, in a new sandbox. */
  async function runTests(sandboxes: Grading, { env, mounts }: Toolchain, patches: string[], command: string) {
    const signal = AbortSignal.timeout(120_000)
    await using sandbox = await sandboxes.runtime.start(
      {
        id: `measure-${Math.random().toString(36).slice(2)}`,
        workdir: '/app',
        env,
        mounts,
        limits: {},
        network: { kind: 'none' },
        labels: {},
        leaseUntil: Date.now() + 120_000,
      },
      signal,
    )
    await sandbox.upload(repository, '/app/repository', signal)
    for (const patch of patches.filter((each) => each !== '')) {
      const applied = await sandbox.exec({
        command: ['git', 'apply'],
        cwd: '/app/repository',
        stdin: patch,
        leftovers: 'end',
      })
      expect(await applied.result).toMatchObject({ exitCode: 0 })
    }
    const run = await sandbox.exec({
      command: ['bash', '-c', `${command} 2>&1`],
      cwd: '/app/repository',
      leftovers: 'end',
    })
    let stdout = ''
    for await (const piece of run.output('stdout')) stdout += piece.toString('utf8')
    const { exitCode } = await run.result
    return { stdout, exitCode }
  }
})

const visibleTests = {
  pytest: 'python3 -m pytest',
  unittest: 'python3 -m unittest discover -s tests -t .',
  node: 'node --test test/*.test.js',
  go: 'go test ./...',
} as const

/** Returns the test command with the path of the hidden tests, which graders add themselves. */
function withTests({ runner, test_cmd: command, hidden }: GradedTask): string {
  switch (runner) {
    case 'unittest':
      return `${command} ${hidden.replace(/\.py$/, '').replaceAll('/', '.')}`
    case 'go':
      return `${command} ./${hidden.replace(/\/[^/]*$/, '')}`
    case 'pytest':
    case 'node':
      return `${command} ${hidden}`
  }
}

/** Returns the options that a node derives from the folder of the task. */
async function harborOptions(dir: string, toolchain: Toolchain): Promise<Omit<GradeOptions, 'agent'>> {
  const { runtime, evaluator } = await loadHarborTask(dir, {
    agent: { harness: 'shell', custom_shell: { command: 'true' } },
    runtime: { kind: 'bubblewrap', capabilities: { images: 'optional' } },
  })
  return {
    evaluator: evaluators.create(evaluators.config.parse({ ...evaluator!.config, kind: evaluator!.strategy }), deps),
    prepare: runtime!.prepare,
    spec: { ...toolchain, workdir: runtime!.workdir!, env: { ...runtime!.env, ...toolchain.env } },
  }
}

/** Returns the options that a node derives from the row: a checkout and the evaluator. */
function swebenchOptions(
  instance: ReturnType<typeof toSwebenchRow>,
  repository: string,
  toolchain: Toolchain,
): Omit<GradeOptions, 'agent'> {
  const config = evaluators.config.parse({ kind: 'swebench', instance, test_timeout_seconds: 120 })
  const prepare = readdirSync(repository, { withFileTypes: true }).map((entry) => ({
    type: entry.isDirectory() ? ('upload_dir' as const) : ('upload_file' as const),
    source: join(repository, entry.name),
    target: `/testbed/${entry.name}`,
  }))
  return { evaluator: evaluators.create(config, deps), prepare, spec: { ...toolchain, workdir: '/testbed' } }
}
