import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { textOf } from '../../model/message.ts'
import type { Sample } from '../../model/sample.ts'
import { lacksLogprob } from '../../model/sample-facts.ts'
import { sampleFacts } from '../sampling-fields.ts'
import type { ScoredSession } from '../score-session.ts'
import { lineExporter, type Exporter, type ExportStart } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('nemo_rl'),
  taskName: z.string().default('polar').describe('task_name of every row'),
  lossMultiplier: z
    .enum(['one', 'weight'])
    .default('one')
    .describe('loss_multiplier: 1, or the sample’s share of its session; the share is in extra_env_info either way'),
})
type Config = z.infer<typeof Config>

/**
 * NeMo RL's DatumSpec, one row per sample. NeMo RL converts log probabilities to tensors, so samples without a log probability
 * of every trained token are left out. A row without a reward has no `reward`.
 */
export const nemoRl: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create(config) {
    const open = ({ samples: index }: ExportStart) =>
      function* (session: ScoredSession) {
        for (const sample of session.samples()) {
          const idx = index++
          if (!lacksLogprob(sample)) yield toDatum(session, sample, idx, config)
        }
      }
    return lineExporter('nemo_rl', open, ['logprobs'])
  },
}

function toDatum(session: ScoredSession, sample: Sample, idx: number, config: Config): Record<string, unknown> {
  return {
    message_log: toMessageLog(session, sample),
    length: sample.ids.length,
    loss_multiplier: config.lossMultiplier === 'weight' ? sample.weight : 1,
    idx,
    task_name: config.taskName,
    extra_env_info: { ...sampleFacts(sample), reward_components: sample.components },
    truncated: sample.finishReason === 'length',
    reward: sample.reward,
  }
}

/**
 * NeMo RL trains exactly the tokens of `assistant` entries. All tokens between two trained answers, untrained answers included,
 * therefore form one `user` entry. The concatenated ids of the entries equal the sample's ids.
 */
function toMessageLog(session: ScoredSession, sample: Sample): Record<string, unknown>[] {
  const nodes = new Map(session.built.graph.nodes.map((node) => [node.key, node]))
  const log: Record<string, unknown>[] = []
  let at = 0
  for (const { key, from, to } of sample.calls.filter((call) => call.isTrained)) {
    if (from > at) log.push({ role: 'user', content: '', token_ids: Array.from(sample.ids.subarray(at, from)) })
    const message = nodes.get(key)?.choice.message
    log.push({
      role: 'assistant',
      content: message === undefined ? '' : textOf(message),
      token_ids: Array.from(sample.ids.subarray(from, to)),
      generation_logprobs: Array.from(sample.logprobs.subarray(from, to)),
    })
    at = to
  }
  if (at < sample.ids.length) log.push({ role: 'user', content: '', token_ids: Array.from(sample.ids.subarray(at)) })
  return log
}
