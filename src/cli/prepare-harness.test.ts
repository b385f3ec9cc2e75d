import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { harnesses } from '../node/harnesses/index.ts'
import { prepareCommand, preparePreset } from './prepare-harness.ts'

const access = { id: 'ses_1', baseUrl: 'http://127.0.0.1:4000/s/ses_1', key: 'sk-polar-secret' }

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-prepare-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

test('a command of the user gets all of the environment, with the gateway under every name', () => {
  const env = { PATH: '/bin', OPENAI_API_KEY: 'sk-own' }
  const prepared = prepareCommand(['agent', '-x'], { env, model: 'm', access })
  expect(prepared.command).toEqual(['agent', '-x'])
  expect(prepared.stdin).toBeUndefined()
  expect(prepared.env).toMatchObject({
    PATH: '/bin',
    OPENAI_API_KEY: 'sk-polar-secret',
    OPENAI_BASE_URL: 'http://127.0.0.1:4000/s/ses_1/v1',
    ANTHROPIC_BASE_URL: 'http://127.0.0.1:4000/s/ses_1',
  })
})

test.each(harnesses)('$name sees nothing of the user but what programs in general need', async (harness) => {
  const env = {
    PATH: '/bin',
    LANG: 'C.UTF-8',
    HOME: '/home/user',
    TMPDIR: '/var/tmp',
    XDG_CONFIG_HOME: '/home/user/.config',
    OPENAI_API_KEY: 'sk-own',
    ANTHROPIC_AUTH_TOKEN: 'sk-own',
    HTTPS_PROXY: 'http://proxy',
    JAVA_HOME: '/opt/java',
  }
  const prompt = 'Do this.'
  const prepared = await preparePreset(
    {
      harness,
      found: { path: '/opt/x', command: ['/opt/x'] },
      prompt,
      extraArgs: ['--more'],
      setup: { model: 'm', contextTokens: 32_768, images: false },
      env,
      kept: ['JAVA_HOME', 'NOT_SET'],
      tmpdir: scratch,
    },
    access,
  )
  const home = prepared.env['HOME'] ?? ''
  expect(home.startsWith(scratch)).toBe(true)
  expect(prepared.env).toMatchObject({ PATH: '/bin', LANG: 'C.UTF-8', JAVA_HOME: '/opt/java', TMPDIR: `${home}/tmp` })
  expect(JSON.stringify(prepared.env)).not.toMatch(/sk-own|\/home\/user|proxy/)
  expect(Object.keys(prepared.env)).not.toContain('NOT_SET')
  expect(prepared.command[0]).toBe('/opt/x')
  expect(prepared.command.at(-1)).toBe('--more')
  expect(prepared.stdin).toBe(prompt)
  expect(prepared.command.join(' ')).not.toMatch(/secret|Do this/)
  const [first = ''] = Object.keys(harness.configure({ ...access, model: 'm', contextTokens: 1, images: true }).files)
  expect(await readFile(join(home, first), 'utf8')).not.toBe('')
  await prepared[Symbol.asyncDispose]()
  expect(await readdir(scratch)).toEqual([])
})
