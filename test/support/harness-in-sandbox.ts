import { stringify } from 'yaml'
import type { SessionRecord } from '../../src/model/session.ts'
import { bundleStart } from '../../src/node/harness/install/harness-bundle.ts'
import type { FoundHarness } from '../../src/node/harness/find-harness.ts'
import { NO_OPTIONS, planLaunch } from '../../src/node/harness/harness-launch.ts'
import type { Harness } from '../../src/node/harness/presets/harness.ts'
import { launchInSandbox } from '../../src/node/harness/launch-in-sandbox.ts'
import type { ExecResult, Runtime } from '../../src/node/sandbox/runtimes/runtime.ts'
import { toScript, type Scenario } from './harness-scenarios.ts'
import { harnessTools } from './harness-tools.ts'
import { Stack } from './stack.ts'

const BUNDLE = '/polar/harness'
const WORK = '/workspace'
const SOCKET_PORT = 8080

export interface SandboxedRun {
  result: ExecResult
  stdout: string
  stderr: string
  session: SessionRecord
  /** Contents of the scenario's files in the sandbox. */
  files: Record<string, string>
}

/** Runs a real CLI from its bundle in a sandbox that can connect only to the socket of its session. */
export async function runInSandbox(
  harness: Harness,
  scenario: Scenario,
  { runtime, found, image }: { runtime: Runtime; found: FoundHarness; image?: string },
): Promise<SandboxedRun> {
  const tools = harnessTools[harness.name]
  if (tools === undefined || found.bundle === undefined || found.folder === undefined) {
    throw new Error(`${harness.name} is no bundle`)
  }
  await using stack = await Stack.start({ script: stringify(toScript(scenario, tools, WORK)) })
  const { session } = stack
  const signal = AbortSignal.timeout(120_000)
  await using sandbox = await runtime.start(
    {
      id: `run-${harness.name.replaceAll('_', '-')}-${scenario.name}`,
      ...(image === undefined ? {} : { image }),
      workdir: WORK,
      env: {},
      limits: {},
      network: { kind: 'none' },
      socket: { port: SOCKET_PORT, accept: (socket) => stack.gateway.accept(session.id, socket) },
      mounts: [{ source: found.folder, target: BUNDLE, isReadOnly: true }],
      labels: { harness: harness.name },
      leaseUntil: Date.now() + 180_000,
    },
    signal,
  )
  const plan = planLaunch(
    harness,
    {
      start: bundleStart(found.bundle, BUNDLE),
      home: `${WORK}/.home`,
      workdir: WORK,
      env: { PATH: '/usr/local/bin:/usr/bin:/bin' },
    },
    {
      sessionId: session.id,
      baseUrl: `http://127.0.0.1:${sandbox.socketPort}/s/${session.id}`,
      key: session.key,
      model: 'tiny',
      contextTokens: 200_000,
      images: scenario.images,
      instruction: `SCRIPT:${scenario.name}#${harness.name} ${scenario.prompt}`,
      agent: NO_OPTIONS,
    },
  )
  const execution = await launchInSandbox(sandbox, plan, { timeoutMs: 90_000 }, signal)
  const [result, stdout, stderr] = await Promise.all([
    execution.result,
    textOf(execution.output('stdout')),
    textOf(execution.output('stderr')),
  ])
  const files: Record<string, string> = {}
  for (const name of Object.keys(scenario.files)) {
    files[name] = await sandbox.readFile(`${WORK}/${name}`, { maxBytes: 1000 }).then(String, String)
  }
  await sandbox.stop()
  return { result, stdout, stderr, session: await stack.recorded(), files }
}

async function textOf(output: AsyncIterable<Buffer>): Promise<string> {
  const pieces: Buffer[] = []
  for await (const piece of output) pieces.push(piece)
  return Buffer.concat(pieces).toString()
}
