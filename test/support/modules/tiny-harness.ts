import * as z from 'zod'
import { defineHarness, type Harness } from '../../../src/index.ts'

const TinySettings = z.strictObject({
  file: z.string().min(1).optional().describe('Where the answer is written; absent: answer.txt'),
})

/** Example of a user's harness: calls the model once and writes the answer to a file. */
const AGENT = `import { readFile, writeFile } from 'node:fs/promises'
const { TINY_BASE_URL, TINY_KEY, TINY_MODEL, TINY_INSTRUCTION, TINY_FILE } = process.env
const response = await fetch(TINY_BASE_URL + '/v1/chat/completions', {
  method: 'POST',
  headers: { 'content-type': 'application/json', authorization: 'Bearer ' + TINY_KEY },
  body: JSON.stringify({
    model: TINY_MODEL,
    messages: [{ role: 'user', content: await readFile(TINY_INSTRUCTION, 'utf8') }],
  }),
})
if (!response.ok) process.exit(3)
await writeFile(TINY_FILE, (await response.json()).choices[0].message.content)
`

export const harness = defineHarness<typeof TinySettings.shape, Harness>({
  name: 'tiny',
  title: 'Tiny',
  command: 'node',
  hasSubAgents: false,
  instruction: 'file',
  mcpTransports: [],
  settings: TinySettings,
  configure: ({ baseUrl, key, model, home, instructionFile }, { file }) => ({
    files: { '.tiny/agent.mjs': AGENT },
    env: {
      TINY_BASE_URL: baseUrl,
      TINY_KEY: key,
      TINY_MODEL: model,
      TINY_INSTRUCTION: instructionFile,
      TINY_FILE: file ?? 'answer.txt',
    },
    args: [`${home}/.tiny/agent.mjs`],
  }),
  exitCodes: { 3: 'gave-up' },
})
