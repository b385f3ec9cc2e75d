/**
 * An engine that only sends prepared answers. The request's `user` field has the instructions, or its last message where a
 * party moved or dropped the field: `replay delay=500 group=8 tokens=32 interval=100 seconds=10`, each of them
 * optional.
 */
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setImmediate, setTimeout } from 'node:timers/promises'
import { serveParent } from './child.ts'
import { loadAnswers, type ReplayBytes } from './replay-bytes.ts'

/** Enough of a body to hold `stream` and `user`. */
const HEAD_BYTES = 256

interface Plan {
  stream: boolean
  /** Milliseconds before the first byte. */
  delay: number
  /** Events in one write. */
  group: number
  /** Events with tokens to send; the usage report is corrected to match. */
  tokens: number
  /** Milliseconds between writes; 0: as fast as the caller reads. */
  interval: number
  /** With an interval: duration of the stream. */
  seconds: number
}

const answers = await loadAnswers(process.argv[2] ?? '')

const server = createServer({ keepAliveTimeout: 60_000, requestTimeout: 0, noDelay: true }, (request, response) => {
  const pieces: Buffer[] = []
  request.on('data', (bytes: Buffer) => pieces.push(bytes))
  request.on('end', () => {
    answer(response, toPlan(Buffer.concat(pieces))).catch(() => response.destroy())
  })
})
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', 4096, resolve))
serveParent({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` })

function toPlan(body: Buffer): Plan {
  const head = body.toString('latin1', 0, HEAD_BYTES)
  const inHead = /"user": ?"replay ([^"]*)"/.exec(head)?.[1]
  const options = inHead ?? optionsInMessage(body)
  const number = (name: string, otherwise: number): number =>
    Number(new RegExp(`${name}=(\\d+)`).exec(options)?.[1] ?? otherwise)
  return {
    stream: /"stream": ?true/.test(inHead === undefined ? body.toString('latin1') : head),
    delay: number('delay', 0),
    group: number('group', 8),
    tokens: Math.min(number('tokens', answers.tokens.length), answers.tokens.length),
    interval: number('interval', 0),
    seconds: number('seconds', 10),
  }
}

function optionsInMessage(body: Buffer): string {
  const at = body.lastIndexOf('[replay ')
  return at === -1 ? '' : body.toString('latin1', at, body.indexOf(']', at))
}

async function answer(response: ServerResponse, plan: Plan): Promise<void> {
  if (plan.delay > 0) await setTimeout(plan.delay)
  if (!plan.stream) {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': answers.whole.length })
    response.end(answers.whole)
    return
  }
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
  const sent = plan.interval > 0 ? await sendPaced(response, plan) : await sendBurst(response, plan)
  response.write(tailAfter(answers, sent))
  // uvicorn ends a body in a write of its own, so a reader that stops at [DONE] has not seen the end of the response.
  await setImmediate()
  response.end()
}

async function sendBurst(response: ServerResponse, { tokens, group }: Plan): Promise<number> {
  for (const bytes of groupsOf(tokens, group)) {
    if (response.destroyed) break
    if (response.write(bytes)) await setImmediate()
    else await drained(response)
  }
  return tokens
}

async function sendPaced(response: ServerResponse, { interval, seconds }: Plan): Promise<number> {
  const total = Math.min(Math.round((seconds * 1000) / interval), answers.tokens.length)
  return new Promise((resolve) => {
    let sent = 0
    const timer = setInterval(() => {
      if (sent < total && !response.destroyed) {
        response.write(answers.tokens[sent++])
        return
      }
      clearInterval(timer)
      resolve(sent)
    }, interval)
  })
}

async function drained(response: ServerResponse): Promise<void> {
  await new Promise<void>((resolve) => {
    const done = (): void => {
      response.off('drain', done)
      response.off('close', done)
      resolve()
    }
    response.on('drain', done)
    response.on('close', done)
  })
}

const groups = new Map<string, Buffer[]>()

function groupsOf(tokens: number, group: number): Buffer[] {
  const key = `${tokens}/${group}`
  let made = groups.get(key)
  if (made === undefined) {
    made = []
    for (let at = 0; at < tokens; at += group) {
      made.push(Buffer.concat(answers.tokens.slice(at, Math.min(at + group, tokens))))
    }
    groups.set(key, made)
  }
  return made
}

/** The end of a shortened stream must count the sent tokens, or the gateway would not accept it as exact. */
function tailAfter({ tail, tokens }: ReplayBytes, sent: number): Buffer {
  const whole = Buffer.concat(tail)
  if (sent === tokens.length) return whole
  const text = whole.toString()
  const left = tokens.length - sent
  return Buffer.from(
    text.replaceAll(/"(completion|total)_tokens":( ?)(\d+)/g, (_, name: string, space: string, count: string) => {
      return `"${name}_tokens":${space}${Number(count) - left}`
    }),
  )
}
