import { execFileSync } from 'node:child_process'
import { randomInt } from 'node:crypto'

/** Network of one node: how to start a program in it, and the address of the server for it. */
export interface Link {
  /** Prefix of a command that runs in the network. */
  prefix: readonly string[]
  serverHost: string
  /** Connection to the server; undefined if nodes share one network. */
  wire?: { cut(): void; heal(): void }
}

export interface Network extends Disposable {
  links: readonly Link[]
  /** Address of engine and graders, which faults do not affect. */
  host: string
  /** Reason why nodes share one network; undefined if each has its own. */
  whyShared: string | undefined
}

/**
 * Creates a network namespace for each node, with two links to ours: one to the server, which can be cut, and one to
 * everything else. A link that is down drops packets silently, like an unplugged cable. If namespaces cannot be created, all
 * nodes use the loopback, and the listening process drops the traffic.
 */
export function openNetwork(nodes: number): Network {
  const names: string[] = []
  const remove = (): void => {
    for (const name of names.splice(0)) ip('netns', 'del', name)
  }
  try {
    if (process.getuid?.() !== 0) throw new Error('network namespaces need root')
    const tag = `pj${randomInt(0x1000, 0x10000).toString(16)}`
    // The range is reserved for network tests (RFC 2544).
    const net = `198.${randomInt(18, 20)}.${randomInt(0, 256)}`
    const host = `${net}.5`
    const links = Array.from({ length: nodes }, (_, place) => {
      const name = `${tag}${place}`
      ip('netns', 'add', name)
      names.push(name)
      ip('-n', name, 'link', 'set', 'lo', 'up')
      const first = place * 8
      addWire(name, `${name}s`, `${net}.${first + 1}`, `${net}.${first + 2}`)
      addWire(name, `${name}e`, `${net}.${first + 5}`, `${net}.${first + 6}`)
      if (place > 0) ip('-n', name, 'route', 'add', `${host}/32`, 'via', `${net}.${first + 5}`)
      return {
        prefix: ['nsenter', `--net=/run/netns/${name}`],
        serverHost: `${net}.${first + 1}`,
        wire: { cut: () => ip('link', 'set', `${name}s`, 'down'), heal: () => ip('link', 'set', `${name}s`, 'up') },
      }
    })
    return { links, host, whyShared: undefined, [Symbol.dispose]: remove }
  } catch (error) {
    remove()
    const whyShared = error instanceof Error ? error.message.split('\n').slice(0, 2).join(' ') : String(error)
    const links = Array.from({ length: nodes }, () => ({ prefix: [], serverHost: '127.0.0.1' }))
    return { links, host: '127.0.0.1', whyShared, [Symbol.dispose]: remove }
  }
}

function addWire(namespace: string, name: string, ours: string, theirs: string): void {
  ip('link', 'add', name, 'type', 'veth', 'peer', 'name', `${name}n`, 'netns', namespace)
  ip('addr', 'add', `${ours}/30`, 'dev', name)
  ip('link', 'set', name, 'up')
  ip('-n', namespace, 'addr', 'add', `${theirs}/30`, 'dev', `${name}n`)
  ip('-n', namespace, 'link', 'set', `${name}n`, 'up')
}

function ip(...args: string[]): void {
  execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'pipe'] })
}
