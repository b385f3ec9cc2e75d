import { spawn } from 'node:child_process'
import { mkdir, mkdtemp, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { stringify } from 'yaml'
import type { ScriptInput } from '../../packages/tiny-engine/src/policies/script-schema.ts'
import type { Harness } from '../../src/node/harness/presets/harness.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { toScript, type Scenario } from './harness-scenarios.ts'
import { harnessTools, noTools } from './harness-tools.ts'
import { tinyPng } from './png.ts'
import type { EngineCall } from './stack.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

export interface HarnessRun {
  /** Working folder of the harness. */
  cwd: string
  /** Prompt of the run. */
  prompt: string
  /** Exit code of the harness, not of polar. */
  exitCode: number
  /** Standard output of the harness. */
  stdout: string
  /** Standard error of the harness and polar. */
  stderr: string
  session: SessionRecord
  engine: EngineCall[]
}

export interface HarnessRunOptions {
  scratch: string
  harnessDir: string
  agent?: unknown
  /** Makes a running engine play the script, and returns its URL. Absent: the tiny engine plays it. */
  play?: (script: ScriptInput) => Promise<string>
}

/** Runs a real CLI through `polar record --harness` on a scenario. */
export async function runHarness(
  harness: Harness,
  scenario: Scenario,
  { scratch, harnessDir, agent, play }: HarnessRunOptions,
): Promise<HarnessRun> {
  const tools = harnessTools[harness.name] ?? noTools
  const folder = await mkdtemp(join(scratch, `${harness.name}-${scenario.name}-`))
  const cwd = join(folder, 'work')
  await mkdir(cwd)
  if (scenario.images) await writeFile(join(cwd, 'pic.png'), tinyPng())
  const [scriptFile, promptFile] = [join(folder, 'script.yaml'), join(folder, 'prompt.md')]
  const [log, out] = [join(folder, 'engine.jsonl'), join(folder, 'sessions')]
  const prompt = `SCRIPT:${scenario.name}#${harness.name} ${scenario.prompt}`
  await writeFile(promptFile, prompt)
  const agentFile = join(folder, 'agent.json')
  if (agent !== undefined) await writeFile(agentFile, JSON.stringify(agent))
  const script = toScript(scenario, tools, cwd)
  await writeFile(scriptFile, stringify(script))
  const engineFlags =
    play === undefined ? [`--script=${scriptFile}`, `--engine-log=${log}`] : [`--engine-url=${await play(script)}`]
  const { status, stdout, stderr } = await polar(
    [
      'record',
      `--harness=${harness.name}`,
      `--harness-dir=${harnessDir}`,
      `--out=${out}`,
      ...engineFlags,
      ...(scenario.images ? ['--images'] : []),
      ...(agent === undefined ? [] : [`--agent=${agentFile}`]),
      '--prompt-file',
      promptFile,
    ],
    cwd,
  )
  const exitCode = /harness exit code (\d+)/.exec(stderr)?.[1]
  if (exitCode === undefined) throw new Error(`polar record ended with ${status} and no session:\n${stderr}`)
  const reader = createCallLogReader({ dir: out })
  const [id = ''] = await reader.list()
  const lines = (play === undefined ? await readFile(log, 'utf8') : '').split('\n').filter((line) => line !== '')
  return {
    cwd,
    prompt,
    exitCode: Number(exitCode),
    stdout,
    stderr,
    session: await reader.load(id),
    engine: lines.map((line) => JSON.parse(line) as EngineCall),
  }
}

/** Runs polar without a terminal. */
function polar(
  args: readonly string[],
  cwd: string,
): Promise<{ status: number | null; stdout: string; stderr: string }> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [join(root, 'src/cli/main.ts'), ...args], {
      cwd,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    let stdout = ''
    let stderr = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    child.once('error', reject)
    child.once('close', (status) => resolve({ status, stdout, stderr }))
  })
}
