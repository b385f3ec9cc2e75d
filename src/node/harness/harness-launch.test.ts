import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { NO_OPTIONS, placeLaunch, planLaunch, type LaunchOrder, type LaunchPlace } from './harness-launch.ts'
import { presets } from './presets/index.ts'
import { pi } from './presets/pi.ts'
import { shell } from './presets/shell.ts'

const place: LaunchPlace = {
  start: { command: ['/opt/polar/pi/node/bin/node', '/opt/polar/pi/cli.js'], env: { FROM_BUNDLE: '1' } },
  home: '/sandbox/home',
  workdir: '/sandbox/work',
  env: { PATH: '/usr/bin:/bin', LANG: 'C.UTF-8' },
}
const order: LaunchOrder = {
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
  test('gives all that a sandbox needs to run a bundle, in the sandbox’s own paths', () => {
    const plan = planLaunch(pi, place, { ...order, extraArgs: ['--mode', 'json'] })
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
    expect(plan.command.slice(0, 2)).toEqual(place.start?.command)
    expect(plan.command.slice(-2)).toEqual(['--mode', 'json'])
    expect(Object.keys(plan.files)).toEqual(['/sandbox/home/.pi/agent/models.json'])
  })

  test('puts the instruction of a shell command in a file, and runs it where the task says', () => {
    const custom_shell = { command: 'agent < "$POLAR_INSTRUCTION_FILE"', cwd: 'sub' }
    const plan = planLaunch(shell, { ...place, start: undefined }, { ...order, agent: { ...NO_OPTIONS, custom_shell } })
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
    const plan = planLaunch(preset, place, { ...order, agent: { ...NO_OPTIONS, custom_shell } })
    expect(plan.command.join(' ')).not.toMatch(/secret|Do this/)
    expect([plan.stdin, ...Object.values(plan.files)].filter((text) => text === 'Do this.')).toHaveLength(1)
    for (const value of Object.values(plan.env)) expect(typeof value).toBe('string')
  })

  test.each(presets)('$name: skills go where it looks for them, or are refused', (preset) => {
    const custom_shell = preset.package === undefined ? { command: 'agent' } : null
    const agent = { ...NO_OPTIONS, custom_shell, skills_path: '/data/skills' }
    const plan = () => planLaunch(preset, place, { ...order, agent })
    if (preset.skillsFolder === undefined) expect(plan).toThrow(`The harness ${preset.name} has no skills`)
    else {
      const target = `/sandbox/home/${preset.skillsFolder}`
      expect(plan().copies).toEqual([{ source: '/data/skills', target }])
    }
  })

  test('lets a task set variables, but not those that lead to the gateway', () => {
    const agent = { ...NO_OPTIONS, env: { LANG: 'de_DE.UTF-8', PI_TELEMETRY: '1' } }
    expect(planLaunch(pi, place, { ...order, agent }).env).toMatchObject(agent.env)
    const [claude] = presets.filter(({ name }) => name === 'claude_code')
    const env = { ANTHROPIC_BASE_URL: 'http://elsewhere', ANTHROPIC_API_KEY: 'x', HOME: '/root', OTHER: '1' }
    expect(() => planLaunch(claude!, place, { ...order, agent: { ...NO_OPTIONS, env } })).toThrow(
      'The environment of claude_code cannot set ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, HOME: polar does.',
    )
  })
})

test('placeLaunch() writes for the owner only, and copies skills with their modes', async () => {
  const scratch = await mkdtemp(join(tmpdir(), 'polar-launch-'))
  try {
    const [home, skills] = [join(scratch, 'home'), join(scratch, 'skills')]
    await mkdir(join(skills, 'crane'), { recursive: true })
    await writeFile(join(skills, 'crane/fold.sh'), '#!/bin/sh\n', { mode: 0o755 })
    const agent = { ...NO_OPTIONS, skills_path: skills }
    await placeLaunch(planLaunch(pi, { ...place, home }, { ...order, agent }))
    const modeOf = async (path: string) => ((await stat(join(home, path))).mode & 0o777).toString(8)
    expect(await modeOf('.pi/agent/models.json')).toBe('600')
    expect(await modeOf('.pi/agent')).toBe('700')
    expect(await modeOf('tmp')).toBe('700')
    expect(await modeOf('.pi/agent/skills/crane/fold.sh')).toBe('755')
    expect(await readFile(join(home, '.pi/agent/models.json'), 'utf8')).toContain(order.baseUrl)
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
})
