import { expect, test } from 'vitest'
import { measureSessions } from './measure-sessions.ts'
import { Observations } from './observations.ts'
import { runConversations } from './run-conversations.ts'

const WHY =
  'SGLang 0.5.23 of PyPI runs on GPUs only: its kernels (sglang-kernel 0.4.10) are built for CUDA sm90 and sm100. Set SGLANG_URL and SGLANG_MODEL to test a running server'

test('SGLang: conversations in four dialects', async ({ skip }) => {
  const [url, model] = [process.env['SGLANG_URL'], process.env['SGLANG_MODEL']]
  if (url === undefined || model === undefined) return skip(WHY)
  const plan = { turns: 6, maxTokens: 60, opening: 'Please list the files.' }
  const { sessions, report } = await runConversations({ url, model, kind: 'sglang' }, plan)
  const { calls, exactCalls, naturalEdges, exactNaturalEdges } = measureSessions(sessions)
  const seen = new Observations('SGLang')
  seen.version = report.version ?? 'unknown'
  seen.add('calls exact', `${exactCalls}/${calls}`)
  seen.add('edges exact', `${exactNaturalEdges}/${naturalEdges}`)
  seen.save()
  expect(exactCalls).toBe(calls)
})
