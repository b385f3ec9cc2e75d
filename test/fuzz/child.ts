import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, readdir } from 'node:fs/promises'
import { createInterface } from 'node:readline'

/** A process under attack, and its first line of output. */
export interface Child extends AsyncDisposable {
  line: string
  process: ChildProcess
  /** The end of its standard error. */
  log(): string
  /** Ends its standard input, and returns the next line of its output. */
  finish(): Promise<string>
}

export async function startChild(words: readonly string[]): Promise<Child> {
  const child = spawn(process.execPath, words, { stdio: ['pipe', 'pipe', 'pipe'] })
  let log = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (log = (log + text).slice(-20_000)))
  const lines = createInterface({ input: child.stdout })
  const [line] = (await Promise.race([
    once(lines, 'line'),
    once(child, 'exit').then(() => Promise.reject(new Error(`${words.join(' ')} ended at once:\n${log}`))),
  ])) as [string]
  return {
    line,
    process: child,
    log: () => log,
    async finish() {
      child.stdin.end()
      const [last] = (await once(lines, 'line')) as [string]
      return last
    },
    async [Symbol.asyncDispose]() {
      if (child.exitCode !== null || child.signalCode !== null) return
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      const force = setTimeout(() => child.kill('SIGKILL'), 20_000)
      await ended
      clearTimeout(force)
    },
  }
}

/** Returns the peak memory of a process and of each of its children in megabytes. */
export async function peakMemoryMb(pid: number): Promise<number> {
  const pids = [pid, ...(await childrenOf(pid))]
  const peaks = await Promise.all(pids.map(peakOf))
  return Math.max(...peaks)
}

async function peakOf(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
  return Math.round(Number(/VmHWM:\s+(\d+)/.exec(status)?.[1] ?? 0) / 1024)
}

export async function childrenOf(pid: number): Promise<number[]> {
  const threads = await readdir(`/proc/${pid}/task`).catch(() => [])
  const texts = await Promise.all(
    threads.map((thread) => readFile(`/proc/${pid}/task/${thread}/children`, 'utf8').catch(() => '')),
  )
  const direct = texts.flatMap((text) => text.split(' ').filter(Boolean).map(Number))
  return [...direct, ...(await Promise.all(direct.map(childrenOf))).flat()]
}
