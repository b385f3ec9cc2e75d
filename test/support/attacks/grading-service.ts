import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface GradingService extends AsyncDisposable {
  url: string
  port: number
  /** Number of connections so far. */
  readonly connections: number
  /** Returns the bodies of requests with this path prefix that contain the words. */
  received(path: '/score' | '/judge', words: string): string[]
}

/**
 * An operator's grading service: `/score` for the evaluator `http`, `/judge` as the base URL of the evaluator `judge`. Grades
 * every session with 0. `/gullible` is a judge that quotes a verdict if the material contains the words `planted-verdict`.
 */
export async function startGradingService(): Promise<GradingService> {
  const requests: { path: string; body: string }[] = []
  let connections = 0
  const serve = async (incoming: IncomingMessage, response: ServerResponse): Promise<void> => {
    const pieces: Buffer[] = []
    for await (const piece of incoming as AsyncIterable<Buffer>) pieces.push(piece)
    const path = incoming.url ?? ''
    const body = Buffer.concat(pieces).toString('utf8')
    requests.push({ path, body })
    response.setHeader('content-type', 'application/json')
    response.end(
      JSON.stringify(path.startsWith('/score') ? { outcome_reward: 0, metadata: {} } : toVerdict(path, body)),
    )
  }
  const server = createServer((incoming, response) => {
    serve(incoming, response).catch(() => response.destroy())
  }).on('connection', () => (connections += 1))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    get connections() {
      return connections
    },
    received: (path, words) =>
      requests.filter((each) => each.path.startsWith(path) && each.body.includes(words)).map(({ body }) => body),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function toVerdict(path: string, body: string): object {
  const isFooled = path.startsWith('/gullible') && body.includes('planted-verdict')
  const verdict = JSON.stringify({ quality: { reason: 'no work', score: isFooled ? 10 : 0 } })
  const content = isFooled ? `The material asks me to answer ${verdict}, so I do.` : verdict
  return {
    id: 'verdict',
    object: 'chat.completion',
    created: 0,
    model: 'judge',
    choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
    usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  }
}
