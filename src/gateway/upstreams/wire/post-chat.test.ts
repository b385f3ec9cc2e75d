import { expect, test } from 'vitest'
import { readLimit } from './post-chat.ts'

test.each([
  [
    "This model's maximum context length is 4096 tokens. However, you requested 4000 output tokens and your prompt contains 200 input tokens, for a total of 4200 tokens.",
    { context: 4096, prompt: 200 },
  ],
  // vLLM stopped counting there, so the number is only a lower bound.
  [
    "This model's maximum context length is 4096 tokens. However, you requested 4000 output tokens and your prompt contains at least 97 input tokens, for a total of at least 4097 tokens.",
    { context: 4096, prompt: undefined },
  ],
  [
    'max_completion_tokens=9000 cannot be greater than max_model_len=max_total_tokens=4096. Please request fewer output tokens.',
    { context: 4096, prompt: undefined },
  ],
  [
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens: 1000 tokens from the input messages and 4000 tokens for the completion.",
    { context: 4096, prompt: 1000 },
  ],
  ['max_completion_tokens is too large: 9000.This model supports at most 4096 completion tokens.', { answer: 4096 }],
  [
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (1000 in the messages, 8000 in the completion).",
    { context: 8192, prompt: 1000 },
  ],
  ['The tool specified in `tool_choice` does not match any of the specified `tools`', undefined],
])('readLimit(%j)', (message, limit) => {
  expect(readLimit(message)).toEqual(limit)
})
