import { createServer } from 'node:http'
import { once } from 'node:events'
import { mkdtemp, readFile, realpath, rm } from 'node:fs/promises'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Route } from '../../src/api/route.ts'
import { routes } from '../../src/api/routes/index.ts'
import { type Child, childrenOf, startChild } from './child.ts'
import type { Example } from './hostile-json.ts'
import type { Target } from './hostile-request.ts'
import type { Neighbour } from './neighbour-process.ts'

/** A target of attacks in a separate process. */
export interface Surface extends AsyncDisposable {
  /** Address of the attacks. */
  url: URL
  targets: readonly Target[]
  child: Child
  /** A call of an innocent client of the same process, which must be answered normally. */
  neighbour: Neighbour
}

export const SURFACES = [
  'openai-chat',
  'openai-responses',
  'anthropic',
  'google',
  'control',
  'server',
  'proxy',
] as const
export type SurfaceName = (typeof SURFACES)[number]

const TOKEN = 'control-token-of-the-fuzz-run'
const main = join(import.meta.dirname, '../../src/cli/main.ts')

export async function openSurface(name: SurfaceName): Promise<Surface> {
  switch (name) {
    case 'server':
      return openServer()
    case 'proxy':
      return openProxy()
    case 'openai-chat':
    case 'openai-responses':
    case 'anthropic':
    case 'google':
    case 'control':
      return openGateway(name)
  }
}

const TOOL = { name: 'f', description: 'd', parameters: { type: 'object', properties: { a: { type: 'string' } } } }

const CALLS: Readonly<Record<Exclude<SurfaceName, 'control' | 'server' | 'proxy'>, readonly [string, Example[]][]>> = {
  'openai-chat': [
    [
      '/v1/chat/completions',
      [
        { model: 'stub', messages: [{ role: 'user', content: 'hi' }], stream: false, stop: ['x'], n: 1, max_tokens: 5 },
        {
          model: 'stub',
          messages: [
            { role: 'system', content: [{ type: 'text', text: 'a' }] },
            { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }] },
            {
              role: 'assistant',
              tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
            },
            { role: 'tool', tool_call_id: 'c', content: 'r' },
          ],
          tools: [{ type: 'function', function: TOOL }],
          tool_choice: { type: 'function', function: { name: 'f' } },
          response_format: { type: 'json_schema', json_schema: { name: 's', schema: {} } },
          stream: true,
        },
      ],
    ],
  ],
  'openai-responses': [
    [
      '/v1/responses',
      [
        { model: 'stub', input: 'hi', instructions: 'be', max_output_tokens: 5, include: ['x'] },
        {
          model: 'stub',
          input: [
            { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'a' }] },
            { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
            { type: 'function_call_output', call_id: 'c', output: 'r' },
            { type: 'reasoning', summary: [{ type: 'summary_text', text: 't' }] },
          ],
          tools: [{ type: 'function', ...TOOL }],
          stream: true,
        },
      ],
    ],
  ],
  anthropic: [
    [
      '/v1/messages',
      [
        { model: 'stub', max_tokens: 5, messages: [{ role: 'user', content: 'hi' }], stop_sequences: ['x'] },
        {
          model: 'stub',
          max_tokens: 5,
          system: [{ type: 'text', text: 's' }],
          messages: [
            { role: 'user', content: [{ type: 'text', text: 'a' }] },
            { role: 'assistant', content: [{ type: 'tool_use', id: 'c', name: 'f', input: { a: 'b' } }] },
            {
              role: 'user',
              content: [{ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'text', text: 'r' }] }],
            },
          ],
          tools: [{ name: 'f', description: 'd', input_schema: TOOL.parameters }],
          stream: true,
        },
      ],
    ],
    ['/v1/messages/count_tokens', [{ model: 'stub', messages: [{ role: 'user', content: 'hi' }] }]],
  ],
  google: [
    [
      '/v1beta/models/stub:generateContent',
      [
        { contents: [{ role: 'user', parts: [{ text: 'hi' }] }], generationConfig: { stopSequences: ['x'] } },
        {
          systemInstruction: { parts: [{ text: 's' }] },
          contents: [
            { role: 'user', parts: [{ text: 'a' }, { inlineData: { mimeType: 'image/png', data: 'AA==' } }] },
            { role: 'model', parts: [{ functionCall: { name: 'f', args: { a: 'b' } } }] },
            { role: 'user', parts: [{ functionResponse: { name: 'f', response: { r: 1 } } }] },
          ],
          tools: [{ functionDeclarations: [TOOL] }],
          toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['f'] } },
        },
      ],
    ],
    ['/v1beta/models/stub:streamGenerateContent?alt=sse', [{ contents: [{ role: 'user', parts: [{ text: 'hi' }] }] }]],
    ['/v1beta/models/stub:countTokens', [{ contents: [{ role: 'user', parts: [{ text: 'hi' }] }] }]],
  ],
}

async function openGateway(name: Exclude<SurfaceName, 'server' | 'proxy'>): Promise<Surface> {
  await using owned = new AsyncDisposableStack()
  const dir = await scratch(owned)
  const engine = owned.use(await startChild([join(import.meta.dirname, 'engine-process.ts')]))
  const words = [main, 'gateway', '--engine-url', engine.line, '--engine-kind', 'openai', '--out', dir]
  const child = owned.use(await startChild([...words, '--control-port', '0', '--control-token', TOKEN]))
  const control = new URL(child.line)
  const trusted = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' }
  const open = async (): Promise<{ base_url: string; api_key: string }> => {
    const answer = await fetch(new URL('/sessions', control), { method: 'POST', headers: trusted, body: '{}' })
    return (await answer.json()) as { base_url: string; api_key: string }
  }
  const [neighbour, attacker] = [await open(), await open()]
  const pid = child.process.pid as number
  const callModel: Neighbour = {
    url: `${neighbour.base_url}/v1/chat/completions`,
    method: 'POST',
    headers: { authorization: `Bearer ${neighbour.api_key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'stub', messages: [{ role: 'user', content: 'hi' }] }),
    pids: await childrenOf(pid),
  }
  const status = new URL('/admin/inference/status', control).href
  const callControl: Neighbour = { url: status, method: 'GET', headers: trusted, pids: [pid] }
  const all = owned.move()
  const shared = { child, [Symbol.asyncDispose]: () => all.disposeAsync() }
  if (name === 'control') {
    const headers = { ...trusted, host: control.host }
    const targets: Target[] = [
      {
        method: 'POST',
        path: '/sessions',
        headers,
        examples: [{ task_id: 't', metadata: { a: [1] }, sampling: { temperature: 1, top_p: 1 } }],
      },
      { method: 'PUT', path: '/admin/weights', headers, examples: [{ weight_version: 'v1' }] },
      { method: 'DELETE', path: '/sessions/ses_nobody', headers, examples: [] },
      { method: 'GET', path: '/metrics', headers, examples: [] },
    ]
    return { ...shared, url: control, targets, neighbour: callControl }
  }
  const base = new URL(attacker.base_url)
  const headers = {
    host: base.host,
    authorization: `Bearer ${attacker.api_key}`,
    'x-api-key': attacker.api_key,
    'content-type': 'application/json',
    'anthropic-version': '2023-06-01',
  }
  const targets = CALLS[name].map(([path, examples]): Target => {
    return { method: 'POST', path: `${base.pathname}${path}`, headers, examples }
  })
  return { ...shared, url: base, targets, neighbour: callModel }
}

async function openServer(): Promise<Surface> {
  await using owned = new AsyncDisposableStack()
  const dir = await scratch(owned)
  const child = owned.use(await startChild([main, 'server', '--port', '0', '--json', '--dir', dir]))
  const { url } = JSON.parse(child.line) as { url: string }
  const tokens = JSON.parse(await readFile(join(dir, 'tokens.json'), 'utf8')) as Record<string, string>
  const { host } = new URL(url)
  const targets = (Object.values(routes) as Route[]).map((route): Target => {
    const scope = route.scopes.includes('node') ? 'node' : 'trainer'
    return {
      method: route.method.toUpperCase(),
      path: route.path.replaceAll(/\{(\w+)\}/g, (_, name: string) => (name === 'node_id' ? 'n1' : 'x')),
      headers: { host, authorization: `Bearer ${tokens[scope]}`, 'content-type': 'application/json' },
      examples: route.body?.kind === 'json' ? [(route.examples?.body ?? RESULT) as Example] : [],
    }
  })
  // A route that streams does not end by itself.
  const ending = targets.filter(({ path }) => path !== '/events')
  const headers = { authorization: `Bearer ${tokens['read']}` }
  const all = owned.move()
  return {
    url: new URL(url),
    targets: ending,
    child,
    neighbour: { url: `${url}/tasks?limit=1`, method: 'GET', headers, pids: [child.process.pid as number] },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

const RESULT: Example = {
  session_id: 'ses_1',
  task_id: 't',
  status: 'COMPLETED',
  node_id: 'n1',
  timing: { run_ms: 1 },
  trajectory: {
    status: 'COMPLETED',
    metadata: {},
    traces: [
      {
        prompt_ids: [1],
        response_ids: [2],
        loss_mask: [1],
        response_logprobs: [-0.5],
        prompt_messages: [{ role: 'user', content: 'x' }],
        response_messages: [],
        metadata: {},
      },
    ],
  },
  metadata: {},
}

async function openProxy(): Promise<Surface> {
  await using owned = new AsyncDisposableStack()
  const site = createServer((request, response) => {
    request.resume()
    request.on('end', () => void response.end('fine'))
  })
  await once(site.listen(0, '127.0.0.1'), 'listening')
  owned.defer(() => {
    site.closeAllConnections()
    site.close()
  })
  const { port } = site.address() as AddressInfo
  const child = owned.use(await startChild([join(import.meta.dirname, 'proxy-process.ts')]))
  const url = new URL(child.line)
  const good = `http://good.example:${port}/`
  const headers = { host: `good.example:${port}` }
  const body: Example = { a: [1, { b: 'c' }], d: 'e' }
  const targets: Target[] = [
    { method: 'POST', path: good, headers, examples: [body] },
    { method: 'PUT', path: good, headers, examples: [body] },
    { method: 'GET', path: good, headers, examples: [] },
    { method: 'POST', path: 'http://evil.example/', headers, examples: [body] },
    { method: 'CONNECT', path: `good.example:${port}`, headers, examples: [body] },
    { method: 'CONNECT', path: 'good.example:99999', headers, examples: [] },
    { method: 'CONNECT', path: 'good.example:1', headers, examples: [] },
  ]
  const all = owned.move()
  return {
    url,
    targets,
    child,
    neighbour: { url: good, method: 'GET', headers, proxy: url.href, pids: [child.process.pid as number] },
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

async function scratch(owned: AsyncDisposableStack): Promise<string> {
  const dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-fuzz-'))
  owned.defer(() => rm(dir, { recursive: true, force: true }))
  return dir
}
