import type { ScriptInput } from '../../packages/tiny-engine/src/policies/script-schema.ts'
import type { HarnessTools, PlayedCall } from './harness-tools.ts'

type Step = NonNullable<ScriptInput['default']>

/** One run of a harness: the model's answers, independent of the harness, and the expected results. */
export interface Scenario {
  name: string
  prompt: string
  steps(tools: HarnessTools, cwd: string): Step[]
  /** Steps of a sub-agent, which its own marker selects; absent without a sub-agent. */
  childSteps?(tools: HarnessTools): Step[]
  /** Expected files in the folder after the run. */
  files: Readonly<Record<string, string>>
  /** Expected end of the harness's output; empty: only white space. */
  says: string
  /** Whether the model accepts images. */
  images: boolean
}

export const scenarioNames = ['basic', 'parallel', 'image', 'sub', 'empty', 'badargs', 'long', 'prompt'] as const
export type ScenarioName = (typeof scenarioNames)[number]

export const CHILD = 'child'

const ROUNDS = 12

/** Text with special meaning in shells, templates and command lines. */
const TRICKY = String.raw`$(id) "quoted" \ %s {{x}} <b> ünïcode ☃`

export const scenarios: readonly (Scenario & { name: ScenarioName })[] = [
  {
    name: 'basic',
    prompt: 'Please create one.txt and two.txt.',
    steps: (tools, cwd) => [
      {
        reasoning: 'The user wants two files. I use the shell for the first.',
        text: 'I create the first file.',
        tool_calls: [oddlyPrinted(tools.shell('echo one > one.txt && cat one.txt'))],
      },
      { reasoning: 'Now the second.', tool_calls: [tools.write('two.txt', 'two\n', cwd)] },
      { text: 'FINAL: both files are there.' },
    ],
    files: { 'one.txt': 'one\n', 'two.txt': 'two\n' },
    says: 'FINAL: both files are there.',
    images: false,
  },
  {
    name: 'parallel',
    prompt: 'Please create a.txt and b.txt at once, then check them.',
    steps: (tools, cwd) => [
      {
        text: 'Two commands at once.',
        tool_calls: [tools.shell('echo A > a.txt; echo did-a'), tools.shell('echo B > b.txt; echo did-b')],
      },
      { tool_calls: [tools.read('a.txt', cwd), tools.shell('cat b.txt; exit 3')] },
      { text: 'FINAL: both were done at once.' },
    ],
    files: { 'a.txt': 'A\n', 'b.txt': 'B\n' },
    says: 'FINAL: both were done at once.',
    images: false,
  },
  {
    name: 'image',
    prompt: 'What is on pic.png?',
    steps: (tools, cwd) => [{ tool_calls: [tools.image('pic.png', cwd)] }, { text: 'FINAL: I saw the picture.' }],
    files: {},
    says: 'FINAL: I saw the picture.',
    images: true,
  },
  {
    name: 'sub',
    prompt: 'Let someone else create child.txt.',
    steps: ({ subagent, shell }) => {
      if (subagent === undefined) throw new Error('This harness has no sub-agents.')
      const start = { text: 'I hand it on.', tool_calls: [subagent.start(`SCRIPT:${CHILD} Create child.txt.`)] }
      const final = { text: 'FINAL: the other one has done it.' }
      switch (subagent.style) {
        case 'foreground':
          return [start, final]
        case 'notified':
          return [start, { text: 'I wait for it.' }, final]
        case 'detached': {
          // No event signals the sub-agent's last answer, so this waits longer than that takes.
          const wait = 'until [ -e child.txt ]; do sleep 0.1; done; sleep 3'
          return [start, { tool_calls: [shell(wait)] }, final]
        }
      }
    },
    childSteps: ({ subagent, shell }) => [
      // Delayed, so that the agent's own next call is always first.
      { first_token_ms: 3000, tool_calls: [shell('echo child > child.txt; cat child.txt')] },
      subagent?.finish === undefined
        ? { text: 'CHILD: child.txt is there.' }
        : { tool_calls: [subagent.finish('CHILD: child.txt is there.')] },
    ],
    files: { 'child.txt': 'child\n' },
    says: 'FINAL: the other one has done it.',
    images: false,
  },
  {
    name: 'empty',
    prompt: 'Say nothing.',
    steps: () => [{ text: '' }],
    files: {},
    says: '',
    images: false,
  },
  {
    name: 'badargs',
    prompt: 'Please create good.txt.',
    steps: (tools) => [
      { tool_calls: [broken(tools.shell('echo unterminated'))] },
      { text: 'Again, in order.', tool_calls: [tools.shell('echo good > good.txt')] },
      { text: 'FINAL: the slip is mended.' },
    ],
    files: { 'good.txt': 'good\n' },
    says: 'FINAL: the slip is mended.',
    images: false,
  },
  {
    name: 'long',
    prompt: 'Please take twelve steps.',
    steps: (tools) => [
      ...Array.from({ length: ROUNDS }, (_, i) => ({
        text: `Step ${i}.`,
        tool_calls: [tools.shell(`echo L${i} >> long.txt; seq 1 400`)],
      })),
      { text: 'FINAL: twelve steps taken.' },
    ],
    files: { 'long.txt': Array.from({ length: ROUNDS }, (_, i) => `L${i}\n`).join('') },
    says: 'FINAL: twelve steps taken.',
    images: false,
  },
  {
    name: 'prompt',
    prompt: `Please read all of this.\n${`${TRICKY}\n`.repeat(2500)}The end.`,
    steps: () => [{ text: 'FINAL: all of it read.' }],
    files: {},
    says: 'FINAL: all of it read.',
    images: false,
  },
]

/** Adds white space where no harness prints it, to test whether the sampled bytes are sent back. */
function oddlyPrinted({ name, arguments: args }: PlayedCall): { name: string; arguments: string } {
  return { name, arguments: JSON.stringify(args).replaceAll('":"', '":  "') }
}

/** Truncates the arguments inside a string, so that they are not JSON. */
function broken({ name, arguments: args }: PlayedCall): { name: string; arguments: string } {
  const text = JSON.stringify(args)
  return { name, arguments: text.slice(0, text.indexOf('unterminated') + 'unterminated'.length) }
}

/** Returns the script of one run. The context is large, so that nothing is compacted. */
export function toScript(scenario: Scenario, tools: HarnessTools, cwd: string): ScriptInput {
  return {
    model: { context_tokens: 200_000, images: scenario.images },
    scenarios: {
      [scenario.name]: scenario.steps(tools, cwd),
      ...(scenario.childSteps === undefined ? {} : { [CHILD]: scenario.childSteps(tools) }),
    },
    // A request without a marker is not part of the scenario; the number of calls shows it.
    default: { text: 'Aside.' },
  }
}
