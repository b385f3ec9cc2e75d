import { once } from 'node:events'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, expect, test } from 'vitest'
import { Stack } from '../support/stack.ts'

const OLD_TOKENS = 20_000
const NEW_TOKENS = 5_000

/** An engine that samples tokens when the test requests them. Like vLLM it does not wait for its client to read. */
class ManualEngine implements AsyncDisposable {
  readonly #server = createServer((message, response) => {
    if (message.url !== '/v1/chat/completions') return response.writeHead(404).end()
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    this.#called.resolve(response)
  })
  readonly #called = Promise.withResolvers<ServerResponse>()
  #sampled = 0

  static async start(): Promise<ManualEngine> {
    const engine = new ManualEngine()
    engine.#server.listen(0, '127.0.0.1')
    await once(engine.#server, 'listening')
    return engine
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  /** Waits for a call and sends `count` tokens. Does not wait until the client has read them. */
  async sample(count: number): Promise<void> {
    const response = await this.#called.promise
    for (let i = 0; i < count; i++) {
      const choice = {
        delta: { content: 'word ' },
        logprobs: { content: [{ token: 'word', logprob: -0.5 }] },
        token_ids: [this.#sampled++],
      }
      this.#write(response, { choices: [{ index: 0, ...choice, finish_reason: null }], prompt_token_ids: [1, 2] })
    }
  }

  async end(): Promise<void> {
    const response = await this.#called.promise
    this.#write(response, { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })
    const usage = { prompt_tokens: 2, completion_tokens: this.#sampled, total_tokens: this.#sampled + 2 }
    this.#write(response, { choices: [], usage })
    response.end('data: [DONE]\n\n')
  }

  #write(response: ServerResponse, chunk: object): void {
    const { prompt_token_ids, ...rest } = chunk as { prompt_token_ids?: unknown }
    const head = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'tiny' }
    const prompt = this.#sampled === 1 ? { prompt_token_ids } : {}
    response.write(`data: ${JSON.stringify({ ...head, ...rest, ...prompt })}\n\n`)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((resolve) => this.#server.close(resolve))
  }
}

async function call(stack: Stack): Promise<IncomingMessage> {
  const { hostname, port } = new URL(stack.gateway.url)
  const path = `/s/${stack.session.id}/v1/chat/completions`
  const headers = { authorization: `Bearer ${stack.session.key}`, 'content-type': 'application/json' }
  const message = request({ hostname, port, method: 'POST', path, headers })
  message.end(JSON.stringify({ model: 'tiny', messages: [{ role: 'user', content: 'go' }], stream: true }))
  const [response] = (await once(message, 'response')) as [IncomingMessage]
  return response
}

describe('a weight update while a harness reads slowly', () => {
  test('the recorded version range of every token includes the version that sampled it', async () => {
    await using engine = await ManualEngine.start()
    await using stack = await Stack.start({ script: 'default: { text: unused }', via: async () => engine.url })
    await stack.gateway.setWeightVersion('step-1')
    const called = call(stack)
    await engine.sample(OLD_TOKENS)
    // The client has not read yet, so most of the tokens are in the buffers of the gateway and of the kernel.
    const response = await called
    await stack.gateway.setWeightVersion('step-2')
    await engine.sample(NEW_TOKENS)
    await engine.end()
    response.resume()
    await once(response, 'end')

    const { turns } = await stack.recorded()
    const [choice] = turns[0]?.response?.choices ?? []
    const spans = choice?.weightSpans ?? []
    expect(turns[0]?.response?.grade).toBe('exact')
    expect(choice?.ids.length).toBe(OLD_TOKENS + NEW_TOKENS)
    expect(spans[0]).toMatchObject({ from: 0, version: 'step-1' })
    const rangeAt = (token: number): string[] => {
      const { version, newest = version } = spans.findLast(({ from }) => from <= token) ?? { version: 'unknown' }
      return version === newest ? [version] : [version, newest]
    }
    const tokens = Array.from(choice?.ids ?? [])
    const wrong = tokens.filter((token) => !rangeAt(token).includes(token < OLD_TOKENS ? 'step-1' : 'step-2'))
    expect(wrong).toHaveLength(0)
  })

  test('tokens that were read before the update have only the old version', async () => {
    await using engine = await ManualEngine.start()
    await using stack = await Stack.start({ script: 'default: { text: unused }', via: async () => engine.url })
    await stack.gateway.setWeightVersion('step-1')
    const called = call(stack)
    await engine.sample(3)
    const response = await called
    let text = ''
    while (!text.includes('word')) text += String(((await once(response, 'data')) as [Buffer])[0])
    await stack.gateway.setWeightVersion('step-2')
    await engine.sample(3)
    await engine.end()
    response.resume()
    await once(response, 'end')
    const { turns } = await stack.recorded()
    const [first, second, ...more] = turns[0]?.response?.choices[0]?.weightSpans ?? []
    expect(first).toEqual({ from: 0, version: 'step-1' })
    expect(second).toMatchObject({ version: 'step-1', newest: 'step-2' })
    expect(more).toEqual([])
  })
})
