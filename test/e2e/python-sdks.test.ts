import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, expect, test } from 'vitest'
import { textOf } from '../../src/model/message.ts'
import { pythonEnvironment } from '../support/python-environment.ts'
import { Stack } from '../support/stack.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const { python, install } = pythonEnvironment('python-sdks', 'python-requirements.txt')

let missing: string | undefined
beforeAll(() => {
  missing = install()
}, 300_000)

const SCRIPT = `
scenarios:
  go:
    - reasoning: "I weigh it"
      text: "Ünïcödé answer."
      tool_calls:
        - { name: bash, arguments: '{"command":  "echo \\"hi\\"", "n": 1.5}' }
        - { name: read, arguments: { path: "a b.txt" } }
`

test('the vendors’ Python SDKs parse the stored turn from every API', async ({ skip }) => {
  if (missing !== undefined) skip(`the Python SDKs cannot be installed here: ${missing}`)
  await using stack = await Stack.start({ script: SCRIPT })
  const env = { ...process.env, POLAR_BASE_URL: stack.session.baseUrl, POLAR_API_KEY: stack.session.key }
  const child = spawn(python, [join(root, 'test/support/python_sdks.py')], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  let errors = ''
  child.stdout.on('data', (piece: Buffer) => (output += piece.toString()))
  child.stderr.on('data', (piece: Buffer) => (errors += piece.toString()))
  const code = await new Promise((resolve) => child.once('close', resolve))
  expect(code, errors).toBe(0)
  const answers = Object.entries(JSON.parse(output) as Record<string, unknown>)
  expect(answers).toHaveLength(8)
  const { turns } = await stack.recorded()
  for (const [i, [name, answer]] of answers.entries()) {
    const turn = turns[i]
    const message = turn?.response?.choices[0]?.message
    expect(turn, name).toMatchObject({ delivery: 'delivered', response: { grade: 'exact' } })
    expect(answer, name).toEqual({
      text: message && textOf(message),
      calls: message?.toolCalls.map((call) => ({ name: call.name, arguments: JSON.parse(call.arguments) as unknown })),
    })
  }
})
