import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

export type CompetitorName = 'Portkey' | 'LiteLLM'

/** Port and upstream of a competitor. */
interface Place {
  port: number
  upstreamUrl: string
  /** For its own files; removed afterwards. */
  scratch: string
}

interface Command {
  file: string
  args: string[]
  env: NodeJS.ProcessEnv
}

/** Another gateway, with a pinned version in a folder of the benchmark. Never a dependency of this package. */
interface Competitor {
  version: string
  install(folder: string): Promise<void>
  command(folder: string, place: Place): Promise<Command>
  /** Callers that saturate its process; more would only wait, for minutes where an answer takes seconds. */
  callers: number
  /** Headers that each call needs. */
  headers(upstreamUrl: string): Record<string, string>
}

const LOOPBACK_ONLY = fileURLToPath(new URL('loopback-only.ts', import.meta.url))

export const competitors: Readonly<Record<CompetitorName, Competitor>> = {
  Portkey: {
    version: '1.15.2',
    callers: 16,
    async install(folder) {
      const manifest = {
        private: true,
        dependencies: { '@portkey-ai/gateway': this.version },
        // With later ones its streams fail: https://github.com/Portkey-AI/gateway/issues/1389
        overrides: { '@hono/node-server': '1.14.1' },
      }
      await writeFile(join(folder, 'package.json'), JSON.stringify(manifest))
      await execute('npm', ['install', '--prefix', folder, '--no-audit', '--no-fund', '--ignore-scripts'])
    },
    async command(folder, { port, scratch }) {
      const program = join(folder, 'node_modules/@portkey-ai/gateway/build/start-server.js')
      return {
        file: process.execPath,
        args: ['--import', LOOPBACK_ONLY, program, `--port=${port}`, '--headless'],
        env: { ...bareEnvironment(scratch), NODE_ENV: 'production' },
      }
    },
    headers: (upstreamUrl) => ({ 'x-portkey-provider': 'openai', 'x-portkey-custom-host': `${upstreamUrl}/v1` }),
  },

  LiteLLM: {
    // The latest whose own requirements the package index could meet.
    version: '1.103.7',
    callers: 2,
    async install(folder) {
      await execute('python3', ['-m', 'venv', '--clear', folder])
      const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check']
      await execute(join(folder, 'bin/python'), [...pip, `litellm[proxy]==${this.version}`])
    },
    async command(folder, { port, upstreamUrl, scratch }) {
      const config = join(scratch, 'config.yaml')
      await writeFile(config, renderLiteLlmConfig(upstreamUrl))
      const listen = ['--host', '127.0.0.1', '--port', String(port), '--num_workers', '1']
      return {
        file: join(folder, 'bin/python'),
        args: [join(folder, 'bin/litellm'), '--config', config, ...listen, '--telemetry', 'False'],
        env: {
          ...bareEnvironment(scratch),
          // Otherwise it fetches its price list at every start.
          LITELLM_LOCAL_MODEL_COST_MAP: 'True',
          LITELLM_MODE: 'PRODUCTION',
          LITELLM_LOG: 'ERROR',
          // Other outgoing connections fail.
          HTTP_PROXY: NOWHERE,
          HTTPS_PROXY: NOWHERE,
          NO_PROXY: '127.0.0.1,localhost',
        },
      }
    },
    headers: () => ({}),
  },
}

const NOWHERE = 'http://127.0.0.1:9'

function renderLiteLlmConfig(upstreamUrl: string): string {
  return JSON.stringify({
    model_list: [
      {
        model_name: 'tiny',
        litellm_params: { model: 'openai/tiny', api_base: `${upstreamUrl}/v1`, api_key: 'none' },
      },
    ],
    litellm_settings: { telemetry: false, num_retries: 0, request_timeout: 60 },
    router_settings: { num_retries: 0 },
  })
}

/** Contains no key or setting of the user. */
function bareEnvironment(home: string): NodeJS.ProcessEnv {
  return { PATH: process.env['PATH'], HOME: home, TMPDIR: home, LANG: 'C.UTF-8' }
}

/** The folder it is installed in; undefined when it is not. */
export function findCompetitor(name: CompetitorName): string | undefined {
  const folder = folderOf(name)
  return existsSync(join(folder, MARK)) ? folder : undefined
}

/** Installs the missing competitors. A failure is printed and does not stop the others. */
export async function installCompetitors(): Promise<void> {
  for (const name of Object.keys(competitors) as CompetitorName[]) {
    if (findCompetitor(name) !== undefined) continue
    const folder = folderOf(name)
    console.log(`installing ${name} ${competitors[name].version} into ${folder}`)
    try {
      await rm(folder, { recursive: true, force: true })
      await mkdir(folder, { recursive: true })
      await competitors[name].install(folder)
      await writeFile(join(folder, MARK), '')
    } catch (error) {
      console.log(`${name} cannot be installed: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
}

/** Written last, so that an incomplete installation does not count. */
const MARK = 'installed'

function folderOf(name: CompetitorName): string {
  const root = fileURLToPath(new URL('../../.polar/bench/', import.meta.url))
  return join(root, `${name.toLowerCase()}-${competitors[name].version}`)
}

const INSTALL_TIMEOUT_MS = 300_000

async function execute(file: string, args: readonly string[]): Promise<void> {
  const child = spawn(file, args, { stdio: ['ignore', 'ignore', 'pipe'], timeout: INSTALL_TIMEOUT_MS })
  let said = ''
  child.stderr.on('data', (piece: Buffer) => (said = (said + piece.toString()).slice(-4000)))
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject)
    child.once('close', resolve)
  })
  if (code !== 0) throw new Error(`${file} ended with ${code ?? 'a signal'}: ${said.trim().split('\n').at(-1)}`)
}
