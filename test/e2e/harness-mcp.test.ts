import { spawn, type ChildProcess } from 'node:child_process'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
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
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-mcp-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

let running: ChildProcess | undefined
afterEach(() => running?.kill())

const scenario: Scenario = {
  name: 'mcp',
  prompt: 'Please reverse the word polar.',
  steps: ({ mcpTool }) => [
    {
      text: 'I ask for it.',
      tool_calls: [{ name: mcpTool?.('words', 'reverse_word') ?? '', arguments: { word: 'polar' } }],
    },
    { text: 'FINAL: it is ralop.' },
  ],
  files: {},
  says: 'FINAL: it is ralop.',
  images: false,
}

describe.each(able)('$title with an MCP server', (harness) => {
  test.for([...harness.mcpTransports])(
    '%s: its tool is offered, called, and its answer comes back',
    async (transport, context) => {
      const places = harnessPlaces(undefined, process.env)
      if ((await findHarness(harness, places)) === undefined) {
        context.skip(whyNoHarness(harness))
      }
      const agent = { mcp_servers: [await startServer(transport)] }
      const run = await runHarness(harness, scenario, { scratch, harnessDir: places.dir, agent })
      expect(run.exitCode, run.stderr).toBe(0)
      expect(run.session.turns).toHaveLength(2)
      expect(offeredTools(run).filter((name) => name.endsWith('reverse_word'))).toHaveLength(1)
      expect(toolResults(run)).toContain('reversed: ralop')
      expect(run.stdout.trimEnd().endsWith(scenario.says), run.stdout).toBe(true)
    },
  )

  test('a skill is found where the task put it', async (context) => {
    const places = harnessPlaces(undefined, process.env)
    if ((await findHarness(harness, places)) === undefined) {
      context.skip(whyNoHarness(harness))
    }
    const agent = { skills_path: await writeSkill() }
    const plain = { ...scenario, steps: () => [{ text: 'FINAL: seen.' }] }
    const run = await runHarness(harness, plain, { scratch, harnessDir: places.dir, agent })
    expect(run.exitCode, run.stderr).toBe(0)
    expect(run.session.turns[0]?.request).toContain('Folds paper cranes')
  })
})

/** The tools of the first call, as the engine saw them. */
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

async function startServer(transport: McpServer['transport']): Promise<McpServer> {
  if (transport === 'stdio') return { name: 'words', transport, command: process.execPath, args: [server, 'stdio'] }
  running = spawn(process.execPath, [server, transport], { stdio: ['ignore', 'pipe', 'inherit'] })
  for await (const url of createInterface({ input: running.stdout! }))
    return { name: 'words', transport, args: [], url }
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
