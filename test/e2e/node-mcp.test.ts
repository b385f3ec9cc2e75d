import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { claudeCode } from '../../src/node/harness/presets/claude-code.ts'
import { NodeStack, orderOf, taskOf } from '../support/node-stack.ts'

test('an MCP server that did not start is reported as a warning, although the harness does not report it', async ({
  skip,
}) => {
  const found = await findHarness(claudeCode, harnessPlaces(undefined, process.env))
  if (found?.bundle === undefined)
    return skip('claude_code is not installed: npm run polar -- harness install claude_code')
  const dir = await mkdtemp(join(tmpdir(), 'polar-node-mcp-'))
  onTestFinished(() => rm(dir, { recursive: true, force: true }))
  const script = join(dir, 'script.yaml')
  await writeFile(script, 'default: { tokens: 5 }\n')
  await using stack = await NodeStack.start({ script })
  const server = { name: 'words', transport: 'stdio', command: '/no/such/server' }
  const run = (mcp_servers: object[]) =>
    stack.node.submit(orderOf(taskOf({ agent: { harness: 'claude_code', mcp_servers } }))).outcome
  const outcome = await run([server])
  expect(outcome).toMatchObject({ status: 'COMPLETED', warnings: [expect.stringContaining('"words"')] })
  expect((await run([])).warnings).toBeUndefined()
}, 120_000)
