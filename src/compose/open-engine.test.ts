import { createServer } from 'node:http'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { describe, expect, test } from 'vitest'
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { collect, request } from '../gateway/upstreams/upstream.contract.ts'
import { openEngine, warningsOf } from './open-engine.ts'

const script = 'default: { text: hello }'

/** Returns a port on which no process listens. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}

describe('openEngine()', () => {
  test('waits for an engine that answers 503 while it loads', async () => {
    await using served = await startEngine({ script, isLoading: true })
    const said: string[] = []
    await using engine = await openEngine({
      url: served.url,
      waitMs: 600_000,
      onWait(sentence) {
        said.push(sentence)
        served.finishLoading()
      },
    })
    expect(engine.info).toMatchObject({ kind: 'vllm', model: 'tiny' })
    expect(said).toEqual([expect.stringContaining('Loading model')])
  })

  test('waits for an engine that does not listen yet', async () => {
    const port = await freePort()
    await using late = new AsyncDisposableStack()
    await using engine = await openEngine({
      url: `http://127.0.0.1:${port}`,
      waitMs: 600_000,
      onWait: () => void startEngine({ script, port }).then((served) => late.use(served)),
    })
    expect(engine.info.model).toBe('tiny')
  })

  test('without a wait, an engine that loads is an error', async () => {
    await using served = await startEngine({ script, isLoading: true })
    await expect(openEngine({ url: served.url })).rejects.toMatchObject({ code: 'upstream.overloaded' })
  })

  test('starts with the replicas that are ready, and a replica joins when it answers', async () => {
    await using ready = await startEngine({ script })
    const port = await freePort()
    const url = `http://127.0.0.1:${port}`
    await using engine = await openEngine({ url: `${url},${ready.url}`, waitMs: 600_000 })
    expect(engine.info.url).toBe(`${url},${ready.url}`)
    expect(engine.configs.map((config) => config.url)).toEqual([url, ready.url])
    expect(engine.configs[0].capabilities).toEqual(engine.upstream.capabilities)
    expect(warningsOf(engine)).toEqual([expect.stringContaining(`the replica ${url} is not ready`)])
    // A new session goes to the replica with the fewest sessions.
    let sessions = 0
    const call = async (): Promise<unknown> => {
      const options = { sessionKey: `session ${(sessions += 1)}` }
      return (await collect(engine.upstream, request('plain', {}), options)).forced['replica']
    }
    expect(await call()).toBe(ready.url)
    await using _late = await startEngine({ script, port })
    await expect.poll(call, { timeout: 60_000 }).toBe(url)
  })
})
