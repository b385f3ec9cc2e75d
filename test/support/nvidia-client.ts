import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * A trainer's client written against NVIDIA Polar only: plain requests with its paths and field names. It must not import
 * our code.
 */
export interface NvidiaClient {
  get(path: string): Promise<Answer>
  post(path: string, body: unknown): Promise<Answer>
  delete(path: string): Promise<Answer>
  /** Submits a task and polls until it has ended, like NVIDIA's command. */
  submitAndPoll(task: object): Promise<Json>
  /** Parsed server-sent events, and their `raw` frames. */
  events(signal: AbortSignal): AsyncGenerator<NvidiaEvent>
}

// oxlint-disable-next-line typescript/no-explicit-any -- the tests check answers field by field.
export type Json = any

export interface Answer {
  status: number
  body: Json
}

export interface NvidiaEvent {
  type: string
  ts: number
  data: Json
}

export function createNvidiaClient(url: string, controlToken: string): NvidiaClient {
  const headers = { 'content-type': 'application/json', 'x-polar-control-token': controlToken }
  const ask = async (method: string, path: string, body?: unknown): Promise<Answer> => {
    const response = await fetch(`${url}${path}`, {
      method,
      headers,
      ...(body !== undefined && { body: JSON.stringify(body) }),
    })
    return { status: response.status, body: await response.json() }
  }
  const client: NvidiaClient = {
    get: (path) => ask('GET', path),
    post: (path, body) => ask('POST', path, body),
    delete: (path) => ask('DELETE', path),
    async submitAndPoll(task) {
      const submitted = await client.post('/rollout/task/submit', task)
      if (submitted.status !== 200) throw new Error(`submit: ${submitted.status} ${JSON.stringify(submitted.body)}`)
      for (;;) {
        const { body } = await client.get(`/rollout/task/${submitted.body.task_id}`)
        if (body.status !== 'running' && body.status !== 'cancelling') return body
        await sleep(200)
      }
    },
    async *events(signal) {
      const response = await fetch(`${url}/events`, { headers, signal })
      let text = ''
      for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
        text += chunk
        for (let end = text.indexOf('\n\n'); end !== -1; end = text.indexOf('\n\n')) {
          const data = /^data: (.*)$/m.exec(text.slice(0, end))?.[1]
          text = text.slice(end + 2)
          if (data !== undefined) yield JSON.parse(data) as NvidiaEvent
        }
      }
    },
  }
  return client
}

export interface CallbackListener extends AsyncDisposable {
  url: string
  received: { body: Json; headers: IncomingHttpHeaders }[]
}

/** The callback endpoint of the Slime bridge. */
export async function listenForCallbacks(): Promise<CallbackListener> {
  const received: CallbackListener['received'] = []
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      received.push({ body: JSON.parse(Buffer.concat(chunks).toString('utf8')), headers: request.headers })
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"status":"ok"}')
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/callback/task_result`,
    received,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
