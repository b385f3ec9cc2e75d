import type { ServerResponse } from 'node:http'
import { JsonBytes } from '../../lib/json/json-bytes.ts'
import type { Caller } from './answer-writer.ts'

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
      // Node sends the headers with the first text, in one write.
      response.writeHead(200, { 'content-type': contentType, 'cache-control': 'no-cache' })
    },

    write(text) {
      if (gone.signal.aborted || response.write(text)) return undefined
      return drained()
    },

    end,

    async sendJson(status, body, headers = {}) {
      if (gone.signal.aborted || response.headersSent) return false
      const content = body instanceof JsonBytes ? body : JSON.stringify(body)
      const length = typeof content === 'string' ? Buffer.byteLength(content) : content.length
      response.writeHead(status, { 'content-type': 'application/json', 'content-length': length, ...headers })
      if (typeof content === 'string') return end(content)
      response.cork()
      for (const piece of content.pieces) response.write(piece)
      return end()
    },

    cut() {
      response.destroy()
    },
  }
}
