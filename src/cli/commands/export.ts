import { createWriteStream } from 'node:fs'
import { resolve } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { Trace } from '../../model/trajectory.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import type { Builder, Exclusion } from '../../trajectory/builders/builder.ts'
import { builders } from '../../trajectory/builders/index.ts'
import { exporters } from '../../trajectory/exporters/index.ts'
import { defineCommand, EXIT, usageError, type ExitCode } from '../command.ts'
import { readPrompt } from '../read-request.ts'
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
      choices: names(builders),
      default: 'per_request',
      description: 'How calls become traces',
    },
    format: {
      type: 'string',
      hint: 'NAME',
      choices: names(exporters),
      default: 'jsonl',
      description: 'What the trainer reads',
    },
    to: { type: 'string', hint: 'FILE', description: 'Output file; without it standard output' },
  },
  examples: [
    'polar export last --builder per_request --format jsonl --to traces.jsonl',
    'polar export all | jq .metadata.session_id',
  ],
  async run({ subject, flags }): Promise<ExitCode> {
    const builder = builders.find(({ name }) => name === flags.builder)
    const exporter = exporters.find(({ name }) => name === flags.format)
    if (!builder || !exporter) throw usageError('export', 'unknown builder or format')
    const counts = { sessions: 0, traces: 0, exclusions: new Map<string, number>() }
    const text = exporter.render(buildAll(subject, resolve(flags.out), builder, counts))
    const target = flags.to === undefined ? process.stdout : createWriteStream(flags.to)
    await pipeline(Readable.from(text), target, { end: flags.to !== undefined })
    process.stderr.write(reportOf(counts))
    return EXIT.done
  },
})

function names(plugs: readonly { name: string }[]): string[] {
  return plugs.map((plug) => plug.name)
}

interface Counts {
  sessions: number
  traces: number
  /** Sampled tokens left out, by reason. */
  exclusions: Map<string, number>
}

/** One session at a time, so that memory does not grow with the number of them. */
async function* buildAll(name: string, dir: string, builder: Builder, counts: Counts): AsyncGenerator<Trace> {
  const all = name === 'all'
  const found = all ? { dir, ids: await createCallLogReader({ dir }).list() } : await one(name, dir)
  const reader = createCallLogReader({ dir: found.dir })
  for (const id of found.ids) {
    const { traces, exclusions } = builder.build(await reader.load(id), { readPrompt })
    counts.sessions += 1
    counts.traces += traces.length
    for (const exclusion of exclusions) addExclusion(counts.exclusions, exclusion)
    yield* traces
  }
}

async function one(name: string, dir: string): Promise<{ dir: string; ids: string[] }> {
  const found = await resolveSession(name, dir)
  return { dir: found.dir, ids: [found.id] }
}

function addExclusion(exclusions: Map<string, number>, { reason, tokens }: Exclusion): void {
  exclusions.set(reason, (exclusions.get(reason) ?? 0) + tokens)
}

function reportOf(counts: Counts): string {
  const excluded = [...counts.exclusions].map(([reason, tokens]) => `  left out ${tokens} sampled tokens: ${reason}\n`)
  return `${count(counts.traces, 'trace')} of ${count(counts.sessions, 'session')}\n${excluded.join('')}`
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`
}
