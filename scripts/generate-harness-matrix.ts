// Writes docs/harness-matrix.md from the results of the last run of test/e2e/harness-matrix.test.ts. With --check it writes
// nothing and fails if the page differs.
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { harnesses } from '../src/node/harness/presets/index.ts'
import type { PackagedHarness } from '../src/node/harness/presets/harness.ts'
import type { RunFacts } from '../test/support/harness-facts.ts'
import { scenarioNames, type ScenarioName } from '../test/support/harness-scenarios.ts'
import { renderTable, root, writePage } from './docs-page.ts'

const PAGE = 'docs/harness-matrix.md'

interface Measured {
  harness: PackagedHarness
  scenarios: Partial<Record<ScenarioName, RunFacts>>
  /** Calls of the same task inside each kind of sandbox. */
  sandboxes: Readonly<Record<string, number>>
}

await writePage(
  PAGE,
  render(await Promise.all(harnesses.filter(({ package: { registry } }) => registry === 'npm').map(load))),
  'node scripts/generate-harness-matrix.ts',
)

async function load(harness: PackagedHarness): Promise<Measured> {
  const [file, sandboxFile] = [`${harness.name}.json`, `${harness.name}.sandbox.json`]
  const hint =
    'install it and run: npm run test:e2e -- test/e2e/harness-matrix.test.ts test/e2e/harness-sandbox.test.ts'
  const [json, sandboxJson] = await Promise.all(
    [file, sandboxFile].map((name) => readFile(join(root, '.polar', 'harness-matrix', name), 'utf8').catch(() => '')),
  )
  if (!json || !sandboxJson) throw new Error(`There is no .polar/harness-matrix/${json ? sandboxFile : file}; ${hint}`)
  const record = JSON.parse(json) as { version: string; scenarios: Measured['scenarios'] }
  const sandboxes = JSON.parse(sandboxJson) as Measured['sandboxes']
  if (record.version === harness.package.version) return { harness, scenarios: record.scenarios, sandboxes }
  throw new Error(`${file} is of version ${record.version}; ${hint}`)
}

function render(measured: readonly Measured[]): string {
  const runs = measured.flatMap(({ scenarios }) => Object.values(scenarios))
  const calls = sum(runs, (run) => run.calls)
  const exact = sum(runs, (run) => run.exactCalls)
  return `# What each harness does through the gateway

The real CLIs, unmodified, started by \`polar record --harness\` on scripted turns of the tiny engine. In ${runs.length}
runs they made ${calls} calls; ${exact} of them were captured with exact tokens, and all were delivered.

${renderTable(
  ['Harness', 'API', ...scenarioNames],
  measured.map(({ harness, scenarios }) => [
    `${harness.title} ${harness.package.version}`,
    harness.dialect,
    ...scenarioNames.map((name) => renderRun(scenarios[name])),
  ]),
)}

- \`basic\`: the shell writes a file, the write tool another, then a text. \`parallel\`: two calls in one answer, twice.
- \`image\`: a picture is read with the harness's own tool; it is in the request, and the engine has read it.
- \`sub\`: a sub-agent writes a file. \`empty\`: an answer without a word. \`long\`: twelve rounds of tools.
- \`badargs\`: tool arguments that are no JSON, then the call again in order. \`prompt\`: a prompt of 100 KB.

Exit codes are those the CLI has against its own provider.

## In a sandbox

\`basic\` again, from the harness's bundle, mounted read-only, without a network: the only connection is the socket to its own
session. Nothing is installed in the sandbox.

${renderTable(
  ['Harness', 'bubblewrap', 'container (Podman)', 'Apptainer'],
  measured.map(({ harness, sandboxes }) => [
    harness.title,
    ...['bubblewrap', 'docker', 'apptainer'].map((kind) =>
      sandboxes[kind] === undefined ? '-' : `ok, ${sandboxes[kind]} calls`,
    ),
  ]),
)}

## What comes back in the next request

Over all runs. A history is _extended_ when it is that of the call before and more, _repeated_ when the harness did not
take the answer and asked the same again, _edited_ when something in it was changed. Tool calls come back _verbatim_,
or printed anew and _restored_ by the gateway to the bytes that were sampled, or _changed_. The tokens _go on_ when a
prompt begins with all ids of the prompt before it and of its answer ([how](exact-tokens.md)). They do not where a
history was repeated or edited, and in \`basic\`, because the tiny model's template leaves out the reasoning of earlier
turns.

${renderTable(
  [
    'Harness',
    'prompt arrives',
    'history extended',
    'repeated',
    'edited',
    'tool calls verbatim',
    'restored',
    'changed',
    'tokens go on',
  ],
  measured.map(({ harness, scenarios }) => {
    const own = Object.values(scenarios)
    const total = (count: (run: RunFacts) => number) => String(sum(own, count))
    const steps = sum(own, ({ history }) => history.extended + history.repeated + history.edited)
    return [
      harness.title,
      own.every(({ prompt }) => prompt === 'exact') ? 'exact' : 'with white space after it',
      total(({ history }) => history.extended),
      total(({ history }) => history.repeated),
      total(({ history }) => history.edited),
      total((run) => run.arguments.verbatim),
      total((run) => run.arguments.restored),
      total((run) => run.arguments.changed),
      `${total((run) => run.prefixKept)} of ${steps}`,
    ]
  }),
)}

## What it gives to train on

Built with \`prefix_merging\` ([how](trajectories.md)). An edge is _exact_ when a call goes on token for token from an
earlier one. _Calls per main sample_ is the merge ratio of the run with twelve rounds of tools: thirteen means that all of
it is one sample. Left out are sampled tokens of retried, abandoned and helper calls.

${renderTable(
  [
    'Harness',
    'exact edges',
    'why not the others',
    'calls per main sample',
    'labels',
    'tokens sampled',
    'trained',
    'left out',
  ],
  measured.map(({ harness, scenarios }) => {
    const own = Object.values(scenarios).map(({ trajectory }) => trajectory.merged)
    const long = scenarios.long?.trajectory.merged.main
    return [
      harness.title,
      `${sum(own, ({ edges }) => edges.exact)} of ${sum(own, ({ edges }) => edges.all)}`,
      renderCounts(own.map(({ forks }) => forks)),
      long === undefined ? '-' : `${long.calls / long.rows}`,
      renderCounts(own.map(({ labels }) => labels)),
      String(sum(own, ({ tokens }) => tokens.sampled)),
      String(sum(own, ({ tokens }) => tokens.trained)),
      String(sum(own, ({ tokens }) => tokens.excluded)),
    ]
  }),
)}

The same runs merged with \`splice\`, as NVIDIA Polar does: tokens that would be trained behind a context the engine never
read, and calls that would be lost. Without \`splice\` both are 0, always.

${renderTable(
  ['Harness', 'samples', 'samples, spliced', 'trained tokens in a foreign context', 'calls lost'],
  measured.map(({ harness, scenarios }) => {
    const own = Object.values(scenarios).map(({ trajectory }) => trajectory)
    return [
      harness.title,
      String(sum(own, ({ merged }) => merged.rows)),
      String(sum(own, ({ spliced }) => spliced.rows)),
      String(sum(own, ({ spliced }) => spliced.mismatchedTokens)),
      String(sum(own, ({ lostBySplice }) => lostBySplice)),
    ]
  }),
)}

This page is made by \`node scripts/generate-harness-matrix.ts\` from what \`test/e2e/harness-matrix.test.ts\` and
\`test/e2e/harness-sandbox.test.ts\` saw.
`
}

function renderRun(run: RunFacts | undefined): string {
  if (run === undefined) return '-'
  const { calls, subagentCalls, exitCode } = run
  return [
    calls === 1 ? '1 call' : `${calls} calls`,
    ...(subagentCalls === 0 ? [] : [`${subagentCalls} of them the sub-agent's`]),
    ...(exitCode === 0 ? [] : [`exit ${exitCode}`]),
  ].join(', ')
}

/** Formats the counts of all runs together: "3 main, 1 retry". */
function renderCounts(all: readonly Readonly<Record<string, number | undefined>>[]): string {
  const names = [...new Set(all.flatMap((counts) => Object.keys(counts)))].toSorted()
  return names.map((name) => `${sum(all, (counts) => counts[name] ?? 0)} ${name}`).join(', ') || '-'
}

function sum<T>(items: readonly T[], count: (item: T) => number): number {
  return items.reduce((total, item) => total + count(item), 0)
}
