import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { NO_OPTIONS, placeLaunch, planLaunch, type LaunchEnvironment, type LaunchRequest } from './harness-launch.ts'
import { presets } from './presets/index.ts'
import { pi } from './presets/pi.ts'
import { shell } from './presets/shell.ts'

const environment: LaunchEnvironment = {
  start: { command: ['/opt/polar/pi/node/bin/node', '/opt/polar/pi/cli.js'], env: { FROM_BUNDLE: '1' } },
  home: '/sandbox/home',
  workdir: '/sandbox/work',
  env: { PATH: '/usr/bin:/bin', LANG: 'C.UTF-8' },
}
const request: LaunchRequest = {
  sessionId: 'ses_1',
  baseUrl: 'http://127.0.0.1:4000/s/ses_1',
  key: 'sk-polar-secret',
  model: 'm',
  contextTokens: 32_768,
  images: false,
  instruction: 'Do this.',
  agent: NO_OPTIONS,
}

describe('planLaunch()', () => {
  test('returns all files, folders and variables of a bundle, with paths of the sandbox', () => {
    const plan = planLaunch(pi, environment, { ...request, extraArgs: ['--mode', 'json'] })
    expect(plan).toMatchObject({
      folders: ['/sandbox/home/tmp'],
      copies: [],
      cwd: '/sandbox/work',
      stdin: 'Do this.',
      env: {
        PATH: '/usr/bin:/bin',
        LANG: 'C.UTF-8',
        HOME: '/sandbox/home',
        TMPDIR: '/sandbox/home/tmp',
        DO_NOT_TRACK: '1',
        FROM_BUNDLE: '1',
        PI_OFFLINE: '1',
      },
    })
    expect(plan.command.slice(0, 2)).toEqual(environment.start?.command)
    expect(plan.command.slice(-2)).toEqual(['--mode', 'json'])
    expect(Object.keys(plan.files)).toEqual(['/sandbox/home/.pi/agent/models.json'])
  })

  test('writes the instruction of a shell command to a file, and runs the command in the workdir of the task', () => {
    const custom_shell = { command: 'agent < "$POLAR_INSTRUCTION_FILE"', cwd: 'sub' }
    const plan = planLaunch(
      shell,
      { ...environment, start: undefined },
      { ...request, agent: { ...NO_OPTIONS, custom_shell } },
    )
    expect(plan).toMatchObject({
      command: ['/bin/sh', '-c', custom_shell.command],
      cwd: '/sandbox/work/sub',
      stdin: '',
      files: { '/sandbox/home/.polar/instruction.md': 'Do this.' },
      env: { POLAR_INSTRUCTION_FILE: '/sandbox/home/.polar/instruction.md', OPENAI_API_KEY: 'sk-polar-secret' },
    })
  })

  test.each(presets)('$name: neither the instruction nor the key is on the command line', (preset) => {
    const custom_shell = preset.package === undefined ? { command: 'agent' } : null
    const plan = planLaunch(preset, environment, { ...request, agent: { ...NO_OPTIONS, custom_shell } })
    expect(plan.command.join(' ')).not.toMatch(/secret|Do this/)
    expect([plan.stdin, ...Object.values(plan.files)].filter((text) => text === 'Do this.')).toHaveLength(1)
    for (const value of Object.values(plan.env)) expect(typeof value).toBe('string')
  })

  test.each(presets)('$name: copies skills to its skills folder, or rejects them', (preset) => {
    const custom_shell = preset.package === undefined ? { command: 'agent' } : null
    const agent = { ...NO_OPTIONS, custom_shell, skills_path: '/data/skills' }
    const plan = () => planLaunch(preset, environment, { ...request, agent })
    if (preset.skillsFolder === undefined) expect(plan).toThrow(`The harness ${preset.name} does not support skills`)
    else {
      const target = `/sandbox/home/${preset.skillsFolder}`
      expect(plan().copies).toEqual([{ source: '/data/skills', target }])
    }
  })

  test('accepts variables of a task except those that lead to the gateway', () => {
    const agent = { ...NO_OPTIONS, env: { LANG: 'de_DE.UTF-8', PI_TELEMETRY: '1' } }
    expect(planLaunch(pi, environment, { ...request, agent }).env).toMatchObject(agent.env)
    const [claude] = presets.filter(({ name }) => name === 'claude_code')
    const env = { ANTHROPIC_BASE_URL: 'http://elsewhere', ANTHROPIC_API_KEY: 'x', HOME: '/root', OTHER: '1' }
    expect(() => planLaunch(claude!, environment, { ...request, agent: { ...NO_OPTIONS, env } })).toThrow(
      'The environment of claude_code cannot set ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, HOME: polar sets it.',
    )
  })
})

test('placeLaunch() makes files private, and copies skills with their modes', async () => {
  const scratch = await mkdtemp(join(tmpdir(), 'polar-launch-'))
  try {
    const [home, skills] = [join(scratch, 'home'), join(scratch, 'skills')]
    await mkdir(join(skills, 'crane'), { recursive: true })
    await writeFile(join(skills, 'crane/fold.sh'), '#!/bin/sh\n', { mode: 0o755 })
    const agent = { ...NO_OPTIONS, skills_path: skills }
    await placeLaunch(planLaunch(pi, { ...environment, home }, { ...request, agent }))
    const modeOf = async (path: string) => ((await stat(join(home, path))).mode & 0o777).toString(8)
    expect(await modeOf('.pi/agent/models.json')).toBe('600')
    expect(await modeOf('.pi/agent')).toBe('700')
    expect(await modeOf('tmp')).toBe('700')
    expect(await modeOf('.pi/agent/skills/crane/fold.sh')).toBe('755')
    expect(await readFile(join(home, '.pi/agent/models.json'), 'utf8')).toContain(request.baseUrl)
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
})
