import { spawn, type ChildProcess } from 'node:child_process'
import { connect, createServer, type AddressInfo } from 'node:net'
import { setTimeout } from 'node:timers/promises'

/** `missing` is the reason for an absent service. */
export type ServiceReady = { url: string; pid: number } | { missing: string }

export interface ServiceOptions {
  name: string
  file: string
  args: readonly string[]
  env?: NodeJS.ProcessEnv
  cwd?: string
  /** Port of the service. */
  port: number
  timeoutMs: number
}

export interface Service {
  ready: ServiceReady
  stop(): Promise<void>
}

/** Starts an external program and waits until it listens. */
export async function startService({ name, file, args, env, cwd, port, timeoutMs }: ServiceOptions): Promise<Service> {
  const child = spawn(file, args, { stdio: ['ignore', 'ignore', 'pipe'], env, cwd })
  let said = ''
  child.stderr.on('data', (piece: Buffer) => (said = (said + piece.toString()).slice(-2000)))
  child.once('error', (error) => (said = error.message))
  const stop = (): Promise<void> => end(child)
  const deadline = performance.now() + timeoutMs
  while (performance.now() < deadline && isRunning(child)) {
    if (await isListening(port)) return { ready: { url: `http://127.0.0.1:${port}`, pid: child.pid ?? 0 }, stop }
    await setTimeout(50)
  }
  const reason = said.trim().split('\n').at(-1) || `status ${child.exitCode ?? child.signalCode ?? 'unknown'}`
  return { ready: { missing: `${name} did not start within ${timeoutMs / 1000} s: ${reason}` }, stop }
}

const STOP_TIMEOUT_MS = 5000

async function end(child: ChildProcess): Promise<void> {
  if (!isRunning(child)) return
  const ended = new Promise((resolve) => child.once('close', resolve))
  child.kill('SIGTERM')
  const stubborn = globalThis.setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS)
  await ended
  clearTimeout(stubborn)
}

function isRunning(child: ChildProcess): boolean {
  return child.pid !== undefined && child.exitCode === null && child.signalCode === null
}

export async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })
}
