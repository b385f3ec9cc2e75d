import type { ServerResponse } from 'node:http'
import type { Caller } from './answer-writer.ts'

/** The harness behind a Node response. */
export function createCaller(response: ServerResponse): Caller {
  const gone = new AbortController()
  response.once('close', () => {
    if (!response.writableFinished) gone.abort()
  })

  function drained(): Promise<void> {
    return new Promise<void>((resolve) => {
      const done = (): void => {
        response.off('drain', done)
        response.off('close', done)
        resolve()
      }
      response.on('drain', done)
      response.on('close', done)
    })
  }

  async function end(text = ''): Promise<boolean> {
    if (gone.signal.aborted || response.destroyed) return false
    await new Promise<void>((resolve) => {
      response.once('close', resolve)
      response.end(text, () => resolve())
    })
    return response.writableFinished
  }

  return {
    signal: gone.signal,

    startStream(contentType) {
      response.writeHead(200, { 'content-type': contentType, 'cache-control': 'no-cache' })
      // A first token may be long in coming; the harness should know at once that its call was taken.
      response.flushHeaders()
    },

    write(text) {
      if (gone.signal.aborted || response.write(text)) return undefined
      return drained()
    },

    end,

    async sendJson(status, body, headers = {}) {
      if (gone.signal.aborted || response.headersSent) return false
      const text = JSON.stringify(body)
      response.writeHead(status, {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(text),
        ...headers,
      })
      return end(text)
    },

    cut() {
      response.destroy()
    },
  }
}
