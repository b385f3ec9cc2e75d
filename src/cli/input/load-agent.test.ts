import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { loadAgent } from './load-agent.ts'

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-agent-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

async function load(text: string): Promise<unknown> {
  const file = join(scratch, 'agent.yaml')
  await writeFile(file, text)
  return loadAgent(file, { harness: 'pi' })
}

test('loadAgent() reads the agent section of a task, and resolves skills from the folder of the file', async () => {
  const text =
    'settings: { thinking: low }\nskills_path: skills\nmcp_servers: [{ name: a, transport: stdio, command: b }]\n'
  expect(await load(text)).toMatchObject({
    settings: { thinking: 'low' },
    skills_path: join(scratch, 'skills'),
    mcp_servers: [{ name: 'a', transport: 'stdio', command: 'b', args: [] }],
  })
})

test('loadAgent() reads the harness or the module from the file unless flags name it', async () => {
  const file = join(scratch, 'named.yaml')
  await writeFile(file, 'import_path: mine.ts\n')
  expect(await loadAgent(file, undefined)).toMatchObject({ import_path: join(scratch, 'mine.ts') })
  await expect(loadAgent(file, { harness: 'pi' })).rejects.toThrow('exactly one of harness and import_path')
  await writeFile(file, 'settings: {}\n')
  await expect(loadAgent(file, undefined)).rejects.toThrow('exactly one of harness and import_path')
})

test.each([
  ['is not YAML', '{', 'Cannot read the agent file'],
  ['has an unknown key', 'setings: {}', 'Unrecognized key: "setings"'],
  ['is empty', '', 'Cannot read the agent file'],
  ['has a server without an address', 'mcp_servers: [{ name: a, transport: sse }]', 'the others need a url'],
])('loadAgent() rejects a file that %s', async (_case, text, message) => {
  await expect(load(text)).rejects.toThrow(message)
})
