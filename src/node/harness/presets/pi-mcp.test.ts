import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { runProgram } from '../../../lib/process/run-program.ts'
import type { McpServer } from '../../../model/task.ts'
import { mcpExtension, NO_SERVER } from './pi-mcp.ts'

const program = fileURLToPath(new URL('../../../../test/support/mcp-server.ts', import.meta.url))

/** Loads the extension as pi does, calls its first tool, and ends the session. */
const PI = `const handlers = {}
const tools = []
const extension = (await import(process.argv[2])).default
extension({ on: (event, handler) => (handlers[event] = handler), registerTool: (tool) => tools.push(tool) })
await handlers.session_start()
const answers = []
for (const tool of tools) answers.push(await tool.execute('1', { word: 'polar' }, undefined))
await handlers.session_shutdown()
console.log(JSON.stringify({ tools, answers }))
`

async function load(servers: readonly McpServer[]): Promise<{ exitCode: number; stdout: string; stderr: string }> {
  const scratch = await mkdtemp(join(tmpdir(), 'polar-pi-mcp-'))
  try {
    const [host, extension] = [join(scratch, 'pi.mjs'), join(scratch, 'extension.mjs')]
    await writeFile(host, PI)
    await writeFile(extension, mcpExtension(servers))
    return await runProgram([process.execPath, host, extension], { env: {}, signal: AbortSignal.timeout(20_000) })
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}

test('the extension offers and calls the tools of all servers', async () => {
  const remote = spawn(process.execPath, [program, 'streamable-http'], { stdio: ['ignore', 'pipe', 'inherit'] })
  let url = ''
  for await (url of createInterface({ input: remote.stdout })) break
  const { exitCode, stdout, stderr } = await load([
    { name: 'words', transport: 'stdio', command: process.execPath, args: [program, 'stdio'] },
    { name: 'far', transport: 'streamable-http', args: [], url },
  ])
  remote.kill()
  expect(exitCode, stderr).toBe(0)
  const { tools, answers } = JSON.parse(stdout) as { tools: { name: string }[]; answers: unknown[] }
  expect(tools.map(({ name }) => name).sort()).toEqual(['far_reverse_word', 'words_reverse_word'])
  expect(answers).toEqual(tools.map(() => ({ content: [{ type: 'text', text: 'reversed: ralop' }] })))
})

test.each<[string, McpServer]>([
  ['does not exist', { name: 'gone', transport: 'stdio', command: '/no/such/program', args: [] }],
  ['ends', { name: 'gone', transport: 'stdio', command: process.execPath, args: ['-e', ''] }],
  ['does not listen', { name: 'gone', transport: 'streamable-http', args: [], url: 'http://127.0.0.1:9/mcp' }],
])('a server that %s ends pi', async (_case, server) => {
  const { exitCode, stderr } = await load([server])
  expect(exitCode).toBe(NO_SERVER)
  expect(stderr).toContain('MCP server gone: ')
})
