import { expect, test } from 'vitest'
import { startEngine } from '../packages/tiny-engine/src/engine.ts'
import { readRecordedShapes, recordShapes, WIRE_SCRIPT } from './engines/wire-exchanges.ts'
import { differences } from './engines/wire-shape.ts'

interface KnownDifference {
  pattern: RegExp
  reason: string
}

/** Differences between the recorded answers of the real vLLM and those of the tiny engine. */
const known: Readonly<Record<string, readonly KnownDifference[]>> = {
  'vllm-0.32.0': [
    {
      pattern: /\.(routed_experts|ec_transfer_params|metrics|prompt_tokens_details|system_fingerprint): /,
      reason:
        'The member is null unless a feature of the server is enabled, or names its build. The gateway reads none.',
    },
    {
      pattern: /\.completion_tokens_details: /,
      reason: 'The tiny engine counts reasoning tokens, as a server with a reasoning parser does.',
    },
    {
      pattern: /^chat stream with tools\.events/,
      reason: "vLLM's parser releases the name and the arguments of a call in other pieces.",
    },
    { pattern: /^completion of ids\./, reason: 'The tiny engine does not score prompts (`prompt_logprobs`).' },
    {
      pattern: /^(unknown path|wrong method)\.body\./,
      reason: "The router of the real server answers in FastAPI's format; the status is the same.",
    },
    { pattern: /^no JSON\.body\.error\.param: /, reason: 'The real server adds the position of the mistake.' },
    { pattern: /^health\.type: /, reason: 'The body is empty.' },
    {
      pattern: /^tool arguments that are no JSON\.body\.(choices|usage)/,
      reason: 'The same members as above, in an answer.',
    },
  ],
}

test.each(Object.keys(known))('the tiny engine answers like the recorded %s', async (environment) => {
  const recorded = readRecordedShapes(environment)!
  const wireVersion = environment.slice('vllm-'.length)
  await using engine = await startEngine({ wire: 'vllm', wireVersion, script: WIRE_SCRIPT })
  const answered = await recordShapes(engine.url, engine.modelName)
  const found = differences(recorded, answered)
  const patterns = known[environment]!
  expect(found.filter((one) => !patterns.some(({ pattern }) => pattern.test(one)))).toEqual([])
  // A pattern that matches nothing describes a difference that no longer exists.
  expect(
    patterns.filter(({ pattern }) => !found.some((one) => pattern.test(one))).map(({ pattern }) => pattern),
  ).toEqual([])
})
