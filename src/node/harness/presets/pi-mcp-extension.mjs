// Extension of pi that offers the tools of MCP servers under `<server>_<tool>`. Runs inside pi: uses globals only. A server that
// does not answer ends pi with `exitCode`.
export function connectServers(pi, servers, exitCode) {
  const TIMEOUT_MS = 60_000
  const closers = []

  function openProcess(server) {
    const { spawn } = process.getBuiltinModule('node:child_process')
    const { createInterface } = process.getBuiltinModule('node:readline')
    const child = spawn(server.command ?? '', server.args, { stdio: ['pipe', 'pipe', 'inherit'] })
    const waiting = new Map()
    const fail = (error) => {
      for (const { reject } of waiting.values()) reject(error)
      waiting.clear()
    }
    child.on('error', fail)
    child.on('exit', (code) => fail(new Error(`it ended with ${code}`)))
    child.stdin.on('error', fail)
    createInterface({ input: child.stdout }).on('line', (line) => {
      if (!line.trim().startsWith('{')) return
      const reply = JSON.parse(line)
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

  function openUrl(url) {
    let session = null
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
      if (!(response.headers.get('content-type') ?? '').includes('text/event-stream')) return JSON.parse(body)
      const events = body.split(/\r?\n/).filter((line) => line.startsWith('data:'))
      const replies = events.map((line) => JSON.parse(line.slice(5)))
      return replies.find(({ id }) => id === message.id) ?? { error: { message: 'no answer in the stream' } }
    }
  }

  async function connect(server) {
    const send = server.transport === 'stdio' ? openProcess(server) : openUrl(server.url ?? '')
    let id = 0
    const call = async (method, params, signal) => {
      const { result, error } = await send({ id: ++id, method, params }, signal)
      if (error !== undefined) throw new Error(error.message)
      return result ?? {}
    }
    const clientInfo = { name: 'polar', version: '1' }
    await call('initialize', { protocolVersion: '2025-06-18', capabilities: {}, clientInfo })
    await send({ method: 'notifications/initialized', params: {} })
    let cursor
    do {
      const { tools = [], nextCursor } = await call('tools/list', cursor === undefined ? {} : { cursor })
      for (const tool of tools) register(server.name, tool, call)
      cursor = nextCursor
    } while (cursor !== undefined)
  }

  function register(server, tool, call) {
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
          end(server, error)
        }
        clearTimeout(timer)
      }),
    )
  })
  pi.on('session_shutdown', async () => {
    for (const close of closers.splice(0)) close()
  })

  function end(server, error) {
    process.stderr.write(`MCP server ${server.name}: ${error.message}\n`)
    for (const close of closers.splice(0)) close()
    process.exit(exitCode)
  }
}
