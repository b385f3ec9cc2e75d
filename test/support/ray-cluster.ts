import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'

/** Ray gives its own processes 15 to 30 s to start, without a setting, which is not always enough on a busy machine. */
const MAX_TRIES = 3

/** The limits that Ray has settings for. */
const PATIENCE = {
  RAY_agent_register_timeout_ms: '300000',
  RAY_worker_register_timeout_seconds: '300',
  RAY_health_check_timeout_ms: '120000',
}

/** A Ray cluster of one machine: `ray start --head --block`. */
export class RayCluster implements AsyncDisposable {
  readonly address: string
  readonly #head: ChildProcess

  private constructor(address: string, head: ChildProcess) {
    this.address = address
    this.#head = head
  }

  /**
   * `ray`: the path of the program. `temp`: a folder with a short path, because Ray makes sockets in it. Returns the reason if
   * Ray does not start.
   */
  static async start(ray: string, temp: string, cpus: number): Promise<RayCluster | string> {
    for (let tries = 1; ; tries++) {
      const own = [`--num-cpus=${cpus}`, '--node-ip-address=127.0.0.1', '--port=0', `--temp-dir=${temp}/${tries}`]
      const args = [
        'start',
        '--head',
        '--block',
        '--include-dashboard=false',
        '--object-store-memory=100000000',
        ...own,
      ]
      // Workers, and so nodes, would have niceness 15.
      const env = { ...process.env, ...PATIENCE, RAY_USAGE_STATS_ENABLED: '0', RAY_worker_niceness: '0' }
      const head = spawn(ray, args, { env, stdio: ['ignore', 'pipe', 'pipe'] })
      let log = ''
      head.stderr.setEncoding('utf8').on('data', (text: string) => (log += text))
      for await (const line of createInterface({ input: head.stdout })) {
        const address = /--address='([^']+)'/.exec(line)?.[1]
        if (address !== undefined) return new RayCluster(address, head)
      }
      if (tries === MAX_TRIES) return log.trim().split('\n').at(-1) ?? ''
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#head.exitCode !== null || this.#head.signalCode !== null) return
    const ended = once(this.#head, 'exit')
    this.#head.kill('SIGTERM')
    await ended
  }
}
