import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { runtimeConfig } from '../support/bubblewrap.ts'

const MAIN = new URL('../../src/cli/main.ts', import.meta.url).pathname
const dir = mkdtempSync(join(tmpdir(), 'polar-sandbox-command-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

function polar(words: readonly string[], input = '') {
  const { status, stdout, stderr } = spawnSync(process.execPath, [MAIN, 'sandbox', ...words], {
    cwd: dir,
    input,
    encoding: 'utf8',
    timeout: 60_000,
  })
  return { status, stdout, stderr }
}

for (const kind of ['local', 'bubblewrap'] as const) {
  const runtime = runtimes.create(runtimes.config.parse(runtimeConfig(kind)), {
    dir: join(dir, 'check', kind),
    now: Date.now,
  })
  const checked = await runtime.check(AbortSignal.timeout(30_000))
  await runtime[Symbol.asyncDispose]()
  const inKind = (verb: string) => [verb, '--runtime', kind]

  describe(`polar sandbox with ${kind}`, () => {
    beforeEach((context) => {
      if (!checked.isUsable) context.skip(`${kind} cannot run here: ${checked.reason}`)
    })

    test('exec passes on input, output and exit code, and removes its sandbox', () => {
      const script = 'cat; echo out; echo err >&2; exit 7'
      expect(polar([...inKind('exec'), '--stdin', '--', 'sh', '-c', script], 'in\n')).toEqual({
        status: 7,
        stdout: 'in\nout\n',
        stderr: 'err\n',
      })
      expect(polar([...inKind('exec'), '--timeout', '1', '--', 'sleep', '20']).status).toBe(124)
      expect(polar([...inKind('exec'), '--', 'sh', '-c', 'kill -KILL $$']).status).toBe(137)
      expect(polar([...inKind('exec'), '--', 'no-such-program']).status).toBe(127)
      expect(polar(inKind('ls'))).toMatchObject({ status: 0, stdout: '', stderr: 'No sandboxes.\n' })
    })

    test('shell reads commands line by line without a terminal', () => {
      expect(polar(inKind('shell'), 'x=5\necho "is $x"\nexit 3\n')).toMatchObject({ status: 3, stdout: 'is 5\n' })
      expect(polar(inKind('shell'), 'echo end')).toMatchObject({ status: 0, stdout: 'end\n' })
    })

    test('an interrupt ends exec and its sandbox; the sandbox of a killed exec is listed and can be removed', async () => {
      const start = async () => {
        const child = spawn(
          process.execPath,
          [MAIN, 'sandbox', ...inKind('exec'), '--', 'sh', '-c', 'echo up; sleep 60'],
          {
            cwd: dir,
            stdio: ['ignore', 'pipe', 'ignore'],
          },
        )
        await once(child.stdout, 'data')
        return child
      }
      const interrupted = await start()
      interrupted.kill('SIGINT')
      expect(await once(interrupted, 'exit')).toEqual([130, null])
      expect(JSON.parse(polar([...inKind('ls'), '--json']).stdout)).toEqual([])
      const killed = await start()
      killed.kill('SIGKILL')
      await once(killed, 'exit')
      await sleep(100)
      const [left] = JSON.parse(polar([...inKind('ls'), '--json']).stdout)
      expect(left).toMatchObject({ runtime: kind, labels: { by: 'polar sandbox' } })
      expect(polar(inKind('ls')).stdout).toContain(left.id)
      expect(polar([...inKind('rm'), '--expired'])).toMatchObject({ status: 0, stdout: '' })
      expect(polar(['rm', left.id, 'no-such'])).toMatchObject({
        status: 1,
        stdout: `${left.id}\n`,
        stderr: 'Sandbox no-such does not exist.\n',
      })
      expect(JSON.parse(polar(['ls', '--json']).stdout)).toEqual([])
    })

    test('exec applies mounts and limits that the runtime supports', (context) => {
      if (!runtime.capabilities.isolatesFiles) return context.skip(`${kind} has no mounts under another path`)
      chmodSync(dir, 0o755)
      writeFileSync(join(dir, 'file'), 'content')
      const script = 'cat /code/file; echo x > /code/new; head -c 20M /dev/zero > big'
      const ran = polar([...inKind('exec'), '--mount', `${dir}:/code`, '--disk-mb', '8', '--', 'sh', '-c', script])
      expect(ran).toMatchObject({ status: 1, stdout: 'content' })
      expect(ran.stderr).toContain('No space left')
      expect(readdirSync(dir)).not.toContain('new')
    })
  })
}

test('invalid arguments are rejected before a sandbox starts', () => {
  const wrong = [
    [],
    ['run'],
    ['exec'],
    ['exec', '--pids', 'many', '--', 'true'],
    ['exec', '--cpus', '0', '--', 'true'],
    ['exec', '--mount', 'here', '--', 'true'],
    ['exec', '--mount', '/no/such/folder:/x', '--', 'true'],
    ['exec', '--network', 'a b', '--', 'true'],
    ['exec', '--runtime', 'docker', '--', 'true'],
    ['exec', '--runtime', 'local', '--network', 'none', '--', 'true'],
    ['ls', 'x'],
    ['rm'],
  ]
  for (const words of wrong) expect(polar(words), words.join(' ')).toMatchObject({ status: 2, stdout: '' })
})
