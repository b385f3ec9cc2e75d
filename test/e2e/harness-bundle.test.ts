import { spawn, spawnSync } from 'node:child_process'
import { appendFile, cp, mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { bundleStart, loadBundle } from '../../src/node/harness/install/harness-bundle.ts'
import { NO_OPTIONS, placeLaunch, planLaunch, type LaunchPlan } from '../../src/node/harness/harness-launch.ts'
import { pi } from '../../src/node/harness/presets/pi.ts'
import { Stack } from '../support/stack.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const folderName = `pi-${pi.package.version}`

let scratch: string
let dir: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-bundle-'))
  dir = join(scratch, 'harnesses')
  // An installation in the format of an older version, copied from this repository to avoid a download.
  const scope = 'node_modules/@earendil-works'
  await cp(join(root, scope), join(dir, folderName, scope), { recursive: true })
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

function polar(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  return spawnSync(process.execPath, [join(root, 'src/cli/main.ts'), 'harness', ...args, '--dir', dir], {
    cwd: scratch,
    encoding: 'utf8',
  })
}

test('polar harness install converts an installation to a bundle, and check finds it intact', () => {
  expect(polar('check', 'pi')).toMatchObject({
    status: 1,
    stdout: expect.stringContaining('not installed as a bundle'),
  })
  expect(polar('install', 'pi')).toMatchObject({ status: 0, stderr: expect.stringContaining('converted to a bundle') })
  expect(polar('check')).toMatchObject({ status: 0, stdout: `pi ${pi.package.version}: intact, starts\n` })
  expect(polar('install', 'pi')).toMatchObject({ status: 0, stderr: expect.stringContaining('already installed') })
  const [row] = (JSON.parse(polar('ls', '--json').stdout) as { name: string }[]).filter(({ name }) => name === 'pi')
  expect(row).toMatchObject({
    state: 'bundle',
    path: join(dir, folderName),
    bundle: { interpreter: { path: 'node/bin/node' } },
  })
})

test('a bundle that was moved runs with an empty PATH and no other Node.js', async () => {
  const moved = join(scratch, 'some where', 'else')
  await mkdir(dirname(moved))
  await rename(join(dir, folderName), moved)
  try {
    const bundle = await loadBundle(moved)
    if (bundle === undefined) throw new Error('There is no bundle.')
    const [home, workdir] = [join(scratch, 'home'), join(scratch, 'work')]
    await mkdir(workdir)
    const script = `scenarios:
  moved:
    - { tool_calls: [{ name: bash, arguments: { command: 'echo "PATH=$PATH" > made.txt' } }] }
    - { text: FINAL }
model: { context_tokens: 100000 }
`
    await using stack = await Stack.start({ script })
    const { id, baseUrl, key } = stack.session
    const plan = planLaunch(
      pi,
      { start: bundleStart(bundle, moved), home, workdir, env: { PATH: '' } },
      {
        sessionId: id,
        baseUrl,
        key,
        model: 'tiny',
        contextTokens: 1e5,
        images: false,
        instruction: 'SCRIPT:moved Make it.',
        agent: NO_OPTIONS,
      },
    )
    await placeLaunch(plan)
    expect(plan.command[0]).toBe(join(moved, 'node/bin/node'))
    expect(await runPlan(plan)).toEqual({ exitCode: 0, stdout: 'FINAL\n' })
    expect(await readFile(join(workdir, 'made.txt'), 'utf8')).not.toContain(root)
  } finally {
    await rename(moved, join(dir, folderName))
  }
})

test('check reports changed, removed and added files and does not run the harness', async () => {
  const inside = join(dir, folderName, 'node_modules/@earendil-works/pi-coding-agent')
  await appendFile(join(inside, 'dist/bundle/cli.js'), '\n// A little more.\n')
  await rm(join(inside, 'package.json'))
  await writeFile(join(inside, 'dist/extra.js'), '')
  const { status, stdout } = polar('check', 'pi')
  expect(status).toBe(1)
  expect(stdout).toMatch(/^pi \S+: 3 problems; repair with: polar harness install pi\n/)
  expect(stdout).toContain('pi-coding-agent/dist/bundle/cli.js was changed\n')
  expect(stdout).toContain('pi-coding-agent/package.json is missing\n')
  expect(stdout).toContain('pi-coding-agent/dist/extra.js does not belong there\n')
})

async function runPlan({ command, cwd, env, stdin }: LaunchPlan): Promise<{ exitCode: number | null; stdout: string }> {
  const [file, ...args] = command
  const child = spawn(file, args, { cwd, env: { ...env }, stdio: ['pipe', 'pipe', 'inherit'] })
  child.stdin.end(stdin)
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve))
  return { stdout: await text(child.stdout), exitCode: await ended }
}
