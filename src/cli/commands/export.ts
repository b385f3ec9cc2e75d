import { createWriteStream } from 'node:fs'
import { resolve } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { Exclusion } from '../../model/sample.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { buildSession } from '../../trajectory/build-session.ts'
import type { Builder } from '../../trajectory/builders/builder.ts'
import { builders } from '../../trajectory/builders/index.ts'
import { exporters } from '../../trajectory/exporters/index.ts'
import type { Exporter } from '../../trajectory/exporters/exporter.ts'
import { scoreSession } from '../../trajectory/score-session.ts'
import { CallFilter } from '../../trajectory/select-calls.ts'
import { defineCommand, EXIT, type ExitCode } from '../command.ts'
import { requestReader } from '../read-request.ts'
import { resolveSession } from '../resolve-session.ts'
import { DEFAULT_OUT } from '../session-view.ts'

export const exportSessions = defineCommand({
  name: 'export',
  description: 'Turn recorded sessions into training data.',
  subject: { name: 'session', description: 'Session id, its folder, "last" or "all"', default: 'all' },
  flags: {
    out: { type: 'string', hint: 'DIR', description: 'Where sessions were written', default: DEFAULT_OUT },
    builder: {
      type: 'string',
      hint: 'NAME',
      choices: [...builders.kinds],
      default: 'prefix_merging',
      description: 'How calls become traces',
    },
    format: {
      type: 'string',
      hint: 'NAME',
      choices: [...exporters.kinds],
      default: 'jsonl',
      description: 'What the trainer reads',
    },
    to: { type: 'string', hint: 'FILE', description: 'Output file; without it standard output' },
  },
  examples: [
    'polar export last --builder prefix_merging --format jsonl --to traces.jsonl',
    'polar export all | jq .metadata.session_id',
  ],
  async run({ subject, flags }): Promise<ExitCode> {
    const builder = builders.create(builders.config.parse({ kind: flags.builder }), {})
    const exporter = exporters.create(exporters.config.parse({ kind: flags.format }), {})
    const counts = { sessions: 0, traces: 0, exclusions: new Map<string, number>() }
    const text = renderAll(subject, resolve(flags.out), { builder, exporter }, counts)
    const target = flags.to === undefined ? process.stdout : createWriteStream(flags.to)
    await pipeline(Readable.from(text), target, { end: flags.to !== undefined })
    process.stderr.write(reportOf(counts))
    return EXIT.done
  },
})

interface Counts {
  sessions: number
  traces: number
  /** Sampled tokens left out, by reason. */
  exclusions: Map<string, number>
}

/** One session at a time, so that memory does not grow with the number of them. */
async function* renderAll(
  name: string,
  dir: string,
  { builder, exporter }: { builder: Builder; exporter: Exporter },
  counts: Counts,
): AsyncGenerator<string | Uint8Array> {
  const all = name === 'all'
  const found = all ? { dir, ids: await createCallLogReader({ dir }).list() } : await one(name, dir)
  const reader = createCallLogReader({ dir: found.dir })
  const writer = exporter.open()
  const options = { builder, filter: CallFilter.parse({}), weighting: 'tokens', reader: requestReader } as const
  for (const id of found.ids) {
    const built = buildSession(await reader.load(id), options)
    counts.sessions += 1
    counts.traces += built.summary.rows
    for (const exclusion of built.exclusions) addExclusion(counts.exclusions, exclusion)
    yield* writer.add(scoreSession(built))
  }
  yield* writer.end()
}

async function one(name: string, dir: string): Promise<{ dir: string; ids: string[] }> {
  const found = await resolveSession(name, dir)
  return { dir: found.dir, ids: [found.id] }
}

function addExclusion(exclusions: Map<string, number>, { detail, tokens }: Exclusion): void {
  exclusions.set(detail, (exclusions.get(detail) ?? 0) + tokens)
}

function reportOf(counts: Counts): string {
  const excluded = [...counts.exclusions].map(([reason, tokens]) => `  left out ${tokens} sampled tokens: ${reason}\n`)
  return `${count(counts.traces, 'trace')} of ${count(counts.sessions, 'session')}\n${excluded.join('')}`
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`
}
