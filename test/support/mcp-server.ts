// A tiny MCP server with one tool, for harnesses to find and call: `node mcp-server.ts stdio`, or `sse` or
// `streamable-http`, which print their URL.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'

interface Message {
  id?: number | string
  method?: string
  params?: { protocolVersion?: string; name?: string; arguments?: { word?: string } }
}

const TOOL = {
  name: 'reverse_word',
  description: 'Gives a word back in reverse.',
  inputSchema: {
    type: 'object',
    properties: { word: { type: 'string', description: 'The word' } },
    required: ['word'],
    additionalProperties: false,
  },
}

/** Undefined for messages that need no answer. */
function answer({ id, method, params }: Message): unknown {
  if (id === undefined) return undefined
  const results: Record<string, unknown> = {
    initialize: {
      protocolVersion: params?.protocolVersion ?? '2025-06-18',
      capabilities: { tools: {} },
      serverInfo: { name: 'words', version: '1.0.0' },
    },
    ping: {},
    'tools/list': { tools: [TOOL] },
    'tools/call': { content: [{ type: 'text', text: `reversed: ${reversed(params?.arguments?.word ?? '')}` }] },
  }
  const result = results[method ?? '']
  if (result !== undefined) return { jsonrpc: '2.0', id, result }
  return { jsonrpc: '2.0', id, error: { code: -32601, message: `no method ${method}` } }
}

function reversed(word: string): string {
  return Array.from(word).reverse().join('')
}

function serveStdio(): void {
  createInterface({ input: process.stdin }).on('line', (line) => {
    if (line.trim() === '') return
    const reply = answer(JSON.parse(line) as Message)
    if (reply !== undefined) process.stdout.write(`${JSON.stringify(reply)}\n`)
  })
}

function serveHttp(path: string, handle: (request: IncomingMessage, response: ServerResponse) => Promise<void>): void {
  const server = createServer((request, response) => void handle(request, response))
  server.listen(0, '127.0.0.1', () => {
    process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}\n`)
  })
}

async function handleStreamable(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method !== 'POST') {
    response.writeHead(405).end()
    return
  }
  const reply = answer(JSON.parse(await text(request)) as Message)
  if (reply === undefined) response.writeHead(202).end()
  else response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(reply))
}

/** The stream of the only client. */
let events: ServerResponse | undefined

async function handleSse(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === 'GET') {
    events = response.writeHead(200, { 'content-type': 'text/event-stream' })
    events.write('event: endpoint\ndata: /messages\n\n')
    return
  }
  if (request.url !== '/messages') {
    response.writeHead(405).end()
    return
  }
  const reply = answer(JSON.parse(await text(request)) as Message)
  response.writeHead(202).end()
  if (reply !== undefined) events?.write(`event: message\ndata: ${JSON.stringify(reply)}\n\n`)
}

const [transport] = process.argv.slice(2)
if (transport === 'sse') serveHttp('/sse', handleSse)
else if (transport === 'streamable-http') serveHttp('/mcp', handleStreamable)
else serveStdio()
