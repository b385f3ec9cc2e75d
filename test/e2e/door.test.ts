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

test('a connection by the door of a session speaks for that session only, even with the key of another', async () => {
  const other = await stack.gateway.openSession()
  const door = createServer((socket) => stack.gateway.accept(stack.session.id, socket)).listen(0, '127.0.0.1')
  await once(door, 'listening')
  const { port } = door.address() as AddressInfo
  const ask = (session: { id: string; key: string }): Promise<unknown> =>
    new OpenAI({
      baseURL: `http://127.0.0.1:${port}/s/${session.id}/v1`,
      apiKey: session.key,
      maxRetries: 0,
    }).chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: 'hello' }],
    })
  try {
    await expect(ask(stack.session)).resolves.toMatchObject({ choices: [{ message: { content: 'well' } }] })
    await expect(ask(other)).rejects.toMatchObject({ status: 401 })
  } finally {
    door.close()
  }
})
