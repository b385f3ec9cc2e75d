import { resolve } from 'node:path'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { buildSession, type BuiltSession } from '../../trajectory/build-session.ts'
import type { HistoryBreak, Edge } from '../../trajectory/graph/call-graph.ts'
import { buildFlags, toBuildOptions } from '../input/build-options.ts'
import { defineCommand, EXIT, toggle, type ExitCode } from '../command.ts'
import { formatGraph, formatSummary } from '../views/graph-view.ts'
import { FROM_FLAG, resolveSession } from '../input/resolve-session.ts'
import { print, printJson, withSnakeKeys } from '../views/print.ts'

export const command = defineCommand({
  name: 'inspect',
  description: 'Show the calls of a session as a tree, with the sample that trains each call.',
  subject: { name: 'session', description: 'Session id, folder of a session, or "last"', default: 'last' },
  flags: {
    from: FROM_FLAG,
    why: toggle('Print the evidence for the label of each call'),
    salvage: toggle('Read the intact part of a damaged log'),
    json: toggle('Print the graph as JSON'),
    ...buildFlags,
  },
  examples: ['polar inspect last', 'polar inspect last --why', 'polar inspect last --json | jq .calls[0].edge'],
  async run({ subject, flags }): Promise<ExitCode> {
    const options = await toBuildOptions('inspect', flags)
    const { dir, id } = await resolveSession(subject, resolve(flags.from))
    const session = await createCallLogReader({ dir }).load(id, { salvage: flags.salvage })
    const built = buildSession(session, options)
    if (flags.json) printJson(withSnakeKeys(toJson(built)), 2)
    else
      print(
        `Session ${session.id}${session.complete ? '' : ' (INCOMPLETE)'}\n\n` +
          `${formatGraph(built, { evidence: flags.why })}\n${formatSummary(built.summary, built.exclusions)}`,
      )
    return EXIT.done
  },
})

function toJson(built: BuiltSession): unknown {
  const sampleOf = new Map<string, string>()
  for (const { id, calls } of built.samples()) {
    for (const { key, isTrained } of calls) if (isTrained) sampleOf.set(key, id)
  }
  return {
    session_id: built.session.id,
    complete: built.session.complete,
    summary: built.summary,
    calls: built.graph.nodes.map((node) => ({
      call: node.key,
      turn: node.turn.index + 1,
      label: node.label,
      evidence: node.evidence,
      edge: toEdgeJson(node.edge),
      prompt_tokens: node.response.promptIds.length,
      sampled_tokens: node.choice.ids.length,
      finish_reason: node.choice.finishReason,
      sample: sampleOf.get(node.key) ?? null,
    })),
    exclusions: built.exclusions,
  }
}

function toEdgeJson(edge: Edge): unknown {
  const named = (broken: HistoryBreak): unknown => ({ ...broken, from: broken.from.key })
  switch (edge.verdict) {
    case 'exact':
      return {
        verdict: 'exact',
        parent: edge.parent.key,
        passedOver: edge.passedOver && named(edge.passedOver),
      }
    case 'forked':
      return named(edge)
    case 'root':
      return edge
  }
}
