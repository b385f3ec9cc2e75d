import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Stack } from '../support/stack.ts'

let stack: Stack
beforeAll(async () => {
  stack = await Stack.start({ script: 'default: { text: "well" }' })
})
afterAll(() => stack[Symbol.asyncDispose]())

test('a connection through the socket of a session acts for that session only, even with the key of another session', async () => {
  const other = await stack.gateway.openSession()
  const server = createServer((socket) => stack.gateway.accept(stack.session.id, socket)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const complete = (session: { id: string; key: string }): Promise<unknown> =>
    new OpenAI({
      baseURL: `http://127.0.0.1:${port}/s/${session.id}/v1`,
      apiKey: session.key,
      maxRetries: 0,
    }).chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: 'hello' }],
    })
  try {
    await expect(complete(stack.session)).resolves.toMatchObject({ choices: [{ message: { content: 'well' } }] })
    await expect(complete(other)).rejects.toMatchObject({ status: 401 })
  } finally {
    server.close()
  }
})
