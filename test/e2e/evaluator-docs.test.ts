import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test, type TestContext } from 'vitest'
import { parse } from 'yaml'
import { evaluators } from '../../src/trajectory/evaluators/index.ts'
import { Grading } from '../support/grade.ts'
import { findToolchain } from '../support/graded-toolchain.ts'
import { loadGradedTasks } from '../support/graded-tasks.ts'

/** The tests attack the examples of docs/evaluators.md. The files of the examples are below the folder of the test. */
const page = await readFile(new URL('../../docs/evaluators.md', import.meta.url), 'utf8')
const examples = [...page.matchAll(/```yaml\n([\s\S]*?)```/g)].map(([, text]) => text!)
const exampleWith = (text: string): string => examples.find((example) => example.includes(text))!

let grading: Grading
const found = findToolchain(loadGradedTasks().find(({ runner }) => runner === 'pytest')!)
beforeAll(async () => {
  grading = await Grading.start()
}, 300_000)
afterAll(() => grading[Symbol.asyncDispose]())

async function put(path: string, text: string): Promise<void> {
  await mkdir(join(grading.dir, path, '..'), { recursive: true })
  await writeFile(join(grading.dir, path), text)
}

/** Returns the reward of the agent from an example evaluator. */
async function rewardOf(context: TestContext, config: object, agent: string): Promise<number | null | undefined> {
  if (found.toolchain === undefined) return context.skip(found.reason)
  const evaluator = evaluators.create(evaluators.config.parse({ kind: 'command', ...config }), {
    now: Date.now,
    secret: () => undefined,
    mayCall: () => false,
  })
  const { result } = await grading.grade({ evaluator, agent, spec: found.toolchain })
  return result.outcome_reward
}

const WRONG = `echo 'def add(a, b): return a - b' > solution.py`
const RIGHT = `echo 'def add(a, b): return a + b' > solution.py`

test(
  'the pytest example gives reward 0 for files that configure or replace the test runner',
  { timeout: 120_000 },
  async (context) => {
    await put(
      'task-17/tests/test_solution.py',
      'from solution import add\n\n\ndef test_add():\n    assert add(2, 2) == 4\n',
    )
    const { evaluator } = parse(exampleWith('pytest').replaceAll('/data', grading.dir)) as {
      evaluator: { config: object }
    }
    const settings = {
      'pytest.ini': '[pytest]',
      '.pytest.ini': '[pytest]',
      'pytest.toml': '[pytest]',
      'tox.ini': '[pytest]',
    }
    const refuse = `echo 'raise SystemExit(0)'`
    const shadows = [
      ...['pytest', '_pytest', 'unittest', 'json'].map((name) => `${refuse} > ${name}.py`),
      ...['pytest', '_pytest'].map(
        (name) => `mkdir ${name} && ${refuse} | tee ${name}/__init__.py > ${name}/__main__.py`,
      ),
    ]
    const configured = [
      ...Object.entries(settings).map(([name, head]) => `printf '${head}\\naddopts = "--collect-only"\\n' > ${name}`),
      String.raw`printf '[tool:pytest]\naddopts = --collect-only\n' > setup.cfg`,
      String.raw`printf '[tool.pytest.ini_options]\naddopts = "--collect-only"\n' > pyproject.toml`,
    ]
    const hooked = [
      `echo 'def pytest_pyfunc_call(pyfuncitem): return True' > conftest.py`,
      'mkdir tests && cp conftest.py tests/ && echo "def add(a, b): return 4" > tests/solution.py',
    ]
    for (const tricks of [shadows, configured, hooked]) {
      const agent = [WRONG, ...tricks].join('; ')
      expect(await rewardOf(context, evaluator.config, agent), agent).toBe(0)
    }
    expect(await rewardOf(context, evaluator.config, [RIGHT, ...shadows, ...configured, ...hooked].join('; '))).toBe(1)
  },
)

test('the score example gives reward 0 for links to the expected output', { timeout: 60_000 }, async (context) => {
  await put('task-17/inputs/1', '2 2')
  await put('task-17/expected/1', '4\n')
  await put(
    'compare.py',
    'import sys\nout, expected = (open(f"{name}/1").read() for name in sys.argv[1:])\nprint(1 if out == expected else 0)\n',
  )
  const { config } = parse(exampleWith('compare.py').replaceAll('/data', grading.dir)) as { config: object }
  const zeroIfMissing = { ...config, missing_reward: 'zero' }
  const honest = `echo 'print(sum(map(int, input().split())))' > solution.py`
  const attacks = [
    `mkdir out; ln -s ../expected/1 out/1; echo 'import sys; sys.exit(1)' > solution.py`,
    `echo 'import os; os.remove("out/1"); os.symlink("../expected/1", "out/1")' > solution.py`,
    `echo 'import os, shutil; shutil.rmtree("out"); os.symlink("expected", "out")' > solution.py`,
    `echo 'import os; os.remove("out/1"); os.symlink("/workspace/expected/1", "out/1")' > solution.py`,
  ]
  for (const attack of attacks) expect(await rewardOf(context, zeroIfMissing, attack), attack).toBe(0)
  expect(await rewardOf(context, zeroIfMissing, honest)).toBe(1)
})
