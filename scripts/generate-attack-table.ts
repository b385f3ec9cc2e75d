// Writes docs/attacks.md and the summary in docs/sandboxes.md from the results that the last runs of
// test/e2e/attacks.test.ts, attacks-docker.test.ts and attacks-apptainer.test.ts left in .polar/attacks.
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import {
  loadResults,
  RUNTIME_NAMES,
  type AttackResult,
  type RuntimeName,
} from '../test/support/attacks/attack-results.ts'
import { renderTable, root, writePage } from './docs-page.ts'

const PAGE = 'docs/attacks.md'
const SUMMARY_PAGE = 'docs/sandboxes.md'
const SUMMARY = /<!-- attacks: begin -->[\s\S]*<!-- attacks: end -->/

const TARGETS: Readonly<Record<AttackResult['target'], string>> = {
  reward: 'A reward that is not earned, or no grading',
  'training data': 'Training on what the policy did not say',
  node: 'Failure of the node, the gateway or the engine',
  neighbour: 'Harm to another session',
  machine: 'Access to the machine of the node',
}

type Row = AttackResult & { results: Readonly<Record<RuntimeName, AttackResult>> }

const rows = toRows(await loadAll())
const COMMAND = 'node scripts/generate-attack-table.ts'
await writePage(PAGE, renderPage(rows), COMMAND)
const summaryPage = await readFile(join(root, SUMMARY_PAGE), 'utf8')
if (!SUMMARY.test(summaryPage)) throw new Error(`${SUMMARY_PAGE} lacks the marks around the summary`)
const summary = `<!-- attacks: begin -->\n\n${renderSummary(rows)}\n\n<!-- attacks: end -->`
await writePage(
  SUMMARY_PAGE,
  summaryPage.replace(SUMMARY, () => summary),
  COMMAND,
)

async function loadAll(): Promise<Record<RuntimeName, AttackResult[]>> {
  const loaded = await Promise.all(RUNTIME_NAMES.map(async (name) => [name, await load(name)] as const))
  return Object.fromEntries(loaded) as Record<RuntimeName, AttackResult[]>
}

async function load(name: RuntimeName): Promise<AttackResult[]> {
  try {
    return await loadResults(name)
  } catch (cause) {
    throw new Error(`No results of ${name}; run: npx vitest run --project e2e attacks`, { cause })
  }
}

function toRows(all: Readonly<Record<RuntimeName, readonly AttackResult[]>>): Row[] {
  return all[RUNTIME_NAMES[0]].map((first) => {
    const results = RUNTIME_NAMES.map((name) => {
      const found = all[name].find(({ id }) => id === first.id)
      if (found === undefined) throw new Error(`The results of ${name} lack ${first.id}; run the suite again`)
      return [name, found] as const
    })
    return { ...first, results: Object.fromEntries(results) as Row['results'] }
  })
}

function renderPage(all: readonly Row[]): string {
  const sections = Object.entries(TARGETS).map(([target, title]) => {
    const chosen = all.filter((row) => row.target === target)
    const table = renderTable(
      ['Attack', 'Defence', ...RUNTIME_NAMES],
      chosen.map((row) => [
        row.title,
        row.defence === 'further' ? '' : row.defence,
        ...RUNTIME_NAMES.map((name) => renderResult(row.results[name])),
      ]),
    )
    return `## ${title}\n\n${table}`
  })
  return `# Attacks

The attack suite runs hostile agents in real sandboxes of a real node, with a gateway, an engine and evaluators with hidden
files. Each attack is one test for each runtime: \`test/e2e/attacks.test.ts\` (bubblewrap), \`attacks-docker.test.ts\` (Podman) and
\`attacks-apptainer.test.ts\` (Apptainer). The scripts of the agents are in \`test/support/attacks\`.

- **holds**: the attack was made, and the defence held.
- **succeeds**: the attack reached its goal.
- **does not apply**: the runtime, or the machine of this run, lacks what the attack needs.

${renderSummary(all)}

${sections.join('\n\n')}

This page is made by \`node scripts/generate-attack-table.ts\` from the results of the suite.
`
}

function renderSummary(all: readonly Row[]): string {
  const total = Object.keys(TARGETS)
    .map((target) => all.filter((row) => row.target === target))
    .map((chosen) => [
      TARGETS[chosen[0]!.target],
      String(chosen.length),
      ...RUNTIME_NAMES.map((name) => count(chosen, name)),
    ])
  const sum = ['All', String(all.length), ...RUNTIME_NAMES.map((name) => count(all, name))]
  return renderTable(['Goal of the attack', 'Attacks', ...RUNTIME_NAMES], [...total, sum])
}

/** "34 hold, 1 does not apply". */
function count(all: readonly Row[], name: RuntimeName): string {
  const of = (result: AttackResult['result']): number =>
    all.filter(({ results }) => results[name].result === result).length
  const [succeed, missing] = [of('succeeds'), of('does not apply')]
  return [
    `${of('holds')} hold`,
    ...(succeed === 0 ? [] : [`${succeed} succeed`]),
    ...(missing === 0 ? [] : [`${missing} not applicable`]),
  ].join(', ')
}

function renderResult({ result, reason }: AttackResult): string {
  return reason === undefined ? result : `${result}: ${reason}`
}
