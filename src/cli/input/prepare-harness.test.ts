import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { NO_OPTIONS } from '../../node/harness/harness-launch.ts'
import { harnesses } from '../../node/harness/presets/index.ts'
import { prepareCommand, preparePreset } from './prepare-harness.ts'

const access = { id: 'ses_1', baseUrl: 'http://127.0.0.1:4000/s/ses_1', key: 'sk-polar-secret' }

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-prepare-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

test('prepareCommand() passes the whole environment, with all variables of the gateway', () => {
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

test.each(harnesses)('preparePreset() passes only general variables of the user to $name', async (harness) => {
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
      found: { path: '/opt/x', command: ['/opt/x'], env: {} },
      prompt,
      extraArgs: ['--more'],
      model: { model: 'm', contextTokens: 32_768, images: false },
      agent: NO_OPTIONS,
      workdir: '/somewhere',
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
  expect(prepared.cwd).toBe('/somewhere')
  expect(prepared.stdin).toBe(harness.instruction === 'stdin' ? prompt : '')
  expect(prepared.command.join(' ')).not.toMatch(/secret|Do this/)
  const files = (await readdir(home, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile())
  const texts = await Promise.all(files.map((file) => readFile(join(file.parentPath, file.name), 'utf8')))
  expect([...texts, ...Object.values(prepared.env)].join()).toContain(access.baseUrl)
  await prepared[Symbol.asyncDispose]()
  expect(await readdir(scratch)).toEqual([])
})
