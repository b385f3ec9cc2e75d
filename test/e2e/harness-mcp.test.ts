import { spawn, type ChildProcess } from 'node:child_process'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { readRequest } from '../../src/compose/read-request.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { harnesses } from '../../src/node/harness/presets/index.ts'
import type { McpServer } from '../../src/model/task.ts'
import { textOf } from '../../src/model/message.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import type { Scenario } from '../support/harness-scenarios.ts'
import { runHarness, type HarnessRun } from '../support/harness-run.ts'

const server = fileURLToPath(new URL('../support/mcp-server.ts', import.meta.url))
const able = harnesses.filter(({ mcpTransports }) => mcpTransports.length > 0)

let scratch: string
const urls: Partial<Record<McpServer['transport'], string>> = {}
const running: ChildProcess[] = []
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-mcp-'))
  for (const transport of ['sse', 'streamable-http'] as const) urls[transport] = await startServer(transport)
})
afterAll(async () => {
  for (const child of running) child.kill()
  await rm(scratch, { recursive: true, force: true })
})

/** One server per transport, each with its own name and word. */
const SERVERS = {
  stdio: { name: 'alpha', word: 'pipe', reversed: 'epip' },
  sse: { name: 'beta', word: 'event', reversed: 'tneve' },
  'streamable-http': { name: 'gamma', word: 'post', reversed: 'tsop' },
} as const satisfies Record<McpServer['transport'], unknown>

function scenarioOf(transports: readonly McpServer['transport'][]): Scenario {
  return {
    name: 'mcp',
    prompt: 'Please reverse some words.',
    steps: ({ mcpTool }) => [
      ...transports.map((transport) => {
        const { name, word } = SERVERS[transport]
        return {
          text: 'I ask for it.',
          tool_calls: [{ name: mcpTool?.(name, 'reverse_word') ?? '', arguments: { word } }],
        }
      }),
      { text: 'FINAL: all reversed.' },
    ],
    files: {},
    says: 'FINAL: all reversed.',
    images: false,
  }
}

/** One start of a CLI takes seconds of CPU time, so the servers of all transports and a skill share it. */
test.for(able)('$title offers and calls the tools of MCP servers, and finds a skill', async (harness, context) => {
  const folders = harnessPlaces(undefined, process.env)
  if ((await findHarness(harness, folders)) === undefined) {
    context.skip(whyNoHarness(harness))
  }
  const { mcpTransports: transports } = harness
  const scenario = scenarioOf(transports)
  const agent = { mcp_servers: transports.map(toServer), skills_path: await writeSkill() }
  const run = await runHarness(harness, scenario, { scratch, harnessDir: folders.dir, agent })
  expect(run.exitCode, run.stderr).toBe(0)
  expect(run.session.turns).toHaveLength(transports.length + 1)
  const offered = offeredTools(run).filter((name) => name.endsWith('reverse_word'))
  expect(offered).toHaveLength(transports.length)
  for (const transport of transports) {
    const { name, reversed } = SERVERS[transport]
    expect(
      offered.filter((tool) => tool.includes(name)),
      transport,
    ).toHaveLength(1)
    expect(toolResults(run), transport).toContain(`reversed: ${reversed}`)
  }
  expect(run.stdout.trimEnd().endsWith(scenario.says), run.stdout).toBe(true)
  expect(run.session.turns[0]?.request).toContain('Folds paper cranes')
})

/** Returns the tools of the first call, as the engine received them. */
function offeredTools({ session }: HarnessRun): string[] {
  const [first] = session.turns
  return (first && readRequest(first))?.tools.map(({ name }) => name) ?? []
}

function toolResults({ session }: HarnessRun): string {
  const last = session.turns.at(-1)
  const messages = (last && readRequest(last))?.messages ?? []
  return messages
    .filter(({ role }) => role === 'tool')
    .map(textOf)
    .join('\n')
}

function toServer(transport: McpServer['transport']): McpServer {
  const { name } = SERVERS[transport]
  if (transport === 'stdio') return { name, transport, command: process.execPath, args: [server, 'stdio'] }
  return { name, transport, args: [], url: urls[transport]! }
}

/** Returns the URL of the server. */
async function startServer(transport: McpServer['transport']): Promise<string> {
  const child = spawn(process.execPath, [server, transport], { stdio: ['ignore', 'pipe', 'inherit'] })
  running.push(child)
  for await (const url of createInterface({ input: child.stdout })) return url
  throw new Error('The MCP server did not start.')
}

async function writeSkill(): Promise<string> {
  const folder = await mkdtemp(join(scratch, 'skills-'))
  await mkdir(join(folder, 'paper-cranes'))
  const text =
    '---\nname: paper-cranes\ndescription: Folds paper cranes. Use for anything with paper.\n---\n\nFold it.\n'
  await writeFile(join(folder, 'paper-cranes', 'SKILL.md'), text)
  return folder
}
