import type { McpServer } from '../../../model/task.ts'

/**
 * Returns the source of a pi extension that offers the tools of MCP servers as `<server>_<tool>`; pi itself does not
 * support MCP. If a server does not answer, pi ends with `NO_SERVER`: the agent must not run without its tools.
 */
export function mcpExtension(servers: readonly McpServer[]): string {
  return `export default (pi) => (${String(connectServers)})(pi, ${JSON.stringify(servers)}, ${NO_SERVER})\n`
}

/** EX_CONFIG of sysexits.h. */
export const NO_SERVER = 78

/** The part of pi's extension interface that is used. */
interface Pi {
  on(event: 'session_start' | 'session_shutdown', handler: () => Promise<void>): void
  registerTool(tool: {
    name: string
    label: string
    description: string
    parameters: unknown
    execute(id: string, params: unknown, signal: AbortSignal | undefined): Promise<unknown>
  }): void
}

interface Tool {
  name: string
  description?: string
  inputSchema: unknown
}

interface Reply {
  id?: number
  result?: { tools?: Tool[]; nextCursor?: string; isError?: boolean; content?: { type: string; text?: string }[] }
  error?: { message: string }
}

type Send = (message: { id?: number; method: string; params: unknown }, signal?: AbortSignal) => Promise<Reply>

/** Its source text runs inside pi, so it must not use anything outside of itself except globals. */
export function connectServers(pi: Pi, servers: readonly McpServer[], exitCode: number): void {
  const TIMEOUT_MS = 60_000
  const closers: (() => void)[] = []

  function openProcess(server: McpServer): Send {
    const { spawn } = process.getBuiltinModule('node:child_process')
    const { createInterface } = process.getBuiltinModule('node:readline')
    const child = spawn(server.command ?? '', server.args, { stdio: ['pipe', 'pipe', 'inherit'] })
    const waiting = new Map<number, { resolve: (reply: Reply) => void; reject: (error: Error) => void }>()
    const fail = (error: Error): void => {
      for (const { reject } of waiting.values()) reject(error)
      waiting.clear()
    }
    child.on('error', fail)
    child.on('exit', (code) => fail(new Error(`it ended with ${code}`)))
    child.stdin.on('error', fail)
    createInterface({ input: child.stdout }).on('line', (line) => {
      if (!line.trim().startsWith('{')) return
      const reply = JSON.parse(line) as Reply
      if (reply.id === undefined) return
      waiting.get(reply.id)?.resolve(reply)
      waiting.delete(reply.id)
    })
    closers.push(() => child.kill())
    return (message) =>
      new Promise((resolve, reject) => {
        if (message.id === undefined) resolve({})
        else waiting.set(message.id, { resolve, reject })
        child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`)
      })
  }

  function openUrl(url: string): Send {
    let session: string | null = null
    return async (message, signal) => {
      const response = await fetch(url, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          accept: 'application/json, text/event-stream',
          ...(session === null ? {} : { 'mcp-session-id': session }),
        },
        body: JSON.stringify({ jsonrpc: '2.0', ...message }),
        signal: signal ?? null,
      })
      session = response.headers.get('mcp-session-id') ?? session
      const body = await response.text()
      if (!response.ok) throw new Error(`HTTP ${response.status}: ${body.slice(0, 200)}`)
      if (message.id === undefined) return {}
      if (!(response.headers.get('content-type') ?? '').includes('text/event-stream')) return JSON.parse(body) as Reply
      const events = body.split(/\r?\n/).filter((line) => line.startsWith('data:'))
      const replies = events.map((line) => JSON.parse(line.slice(5)) as Reply)
      return replies.find(({ id }) => id === message.id) ?? { error: { message: 'no answer in the stream' } }
    }
  }

  async function connect(server: McpServer): Promise<void> {
    const send = server.transport === 'stdio' ? openProcess(server) : openUrl(server.url ?? '')
    let id = 0
    const call = async (
      method: string,
      params: unknown,
      signal?: AbortSignal,
    ): Promise<NonNullable<Reply['result']>> => {
      const { result, error } = await send({ id: ++id, method, params }, signal)
      if (error !== undefined) throw new Error(error.message)
      return result ?? {}
    }
    const clientInfo = { name: 'polar', version: '1' }
    await call('initialize', { protocolVersion: '2025-06-18', capabilities: {}, clientInfo })
    await send({ method: 'notifications/initialized', params: {} })
    let cursor: string | undefined
    do {
      const { tools = [], nextCursor } = await call('tools/list', cursor === undefined ? {} : { cursor })
      for (const tool of tools) register(server.name, tool, call)
      cursor = nextCursor
    } while (cursor !== undefined)
  }

  function register(
    server: string,
    tool: Tool,
    call: (method: string, params: unknown, signal?: AbortSignal) => Promise<NonNullable<Reply['result']>>,
  ): void {
    pi.registerTool({
      name: `${server}_${tool.name}`,
      label: `${server}: ${tool.name}`,
      description: tool.description ?? tool.name,
      parameters: tool.inputSchema,
      async execute(_id, params, signal) {
        const { content = [], isError } = await call('tools/call', { name: tool.name, arguments: params }, signal)
        if (isError) throw new Error(content.map(({ text }) => text ?? '').join('\n'))
        const parts = content.map((part) =>
          part.type === 'text' || part.type === 'image' ? part : { type: 'text', text: JSON.stringify(part) },
        )
        return { content: parts, details: undefined }
      },
    })
  }

  pi.on('session_start', async () => {
    await Promise.all(
      servers.map(async (server) => {
        const timer = setTimeout(() => end(server, new Error('no answer in time')), TIMEOUT_MS)
        try {
          await connect(server)
        } catch (error) {
          end(server, error as Error)
        }
        clearTimeout(timer)
      }),
    )
  })
  pi.on('session_shutdown', async () => {
    for (const close of closers.splice(0)) close()
  })

  function end(server: McpServer, error: Error): void {
    process.stderr.write(`MCP server ${server.name}: ${error.message}\n`)
    for (const close of closers.splice(0)) close()
    process.exit(exitCode)
  }
}
