import { request } from 'undici'
import { SseParser } from '../../src/lib/net/sse.ts'
import type { Arena, Party } from './parties.ts'
import { requestBody } from './prompt.ts'

export interface Verdict {
  party: Party
  /** Absent: its answers equal the engine's. */
  problem?: string
  /** Whether it requests ids from the engine when its caller does. */
  idsPassedOn: boolean
}

interface Read {
  text: string
  completionTokens: number | undefined
  hasIds: boolean
}

interface Chunk {
  choices?: { message?: { content?: string | null }; delta?: { content?: string | null } }[]
  usage?: { completion_tokens?: number } | null
}

/** Sends one whole answer and one stream through each party, and compares them with those of the upstream. */
export async function verifyParties({ parties }: Arena): Promise<Verdict[]> {
  const direct = parties.find(({ name }) => name === 'direct')
  if (direct === undefined) throw new Error('nothing to compare with')
  const expected = { whole: await ask(direct, false), stream: await ask(direct, true) }
  const verdicts: Verdict[] = []
  for (const party of parties) verdicts.push(await verify(party, expected))
  return verdicts
}

async function verify(party: Party, expected: { whole: Read; stream: Read }): Promise<Verdict> {
  let idsPassedOn = true
  try {
    for (const [kind, wanted] of Object.entries(expected)) {
      const got = await ask(party, kind === 'stream')
      idsPassedOn &&= got.hasIds
      const isSame = got.text === wanted.text && got.completionTokens === wanted.completionTokens
      if (!isSame) return { party, idsPassedOn, problem: `its ${kind} answer is not the engine's` }
    }
    return { party, idsPassedOn }
  } catch (error) {
    return { party, idsPassedOn: false, problem: error instanceof Error ? error.message : String(error) }
  }
}

async function ask(party: Party, stream: boolean): Promise<Read> {
  const [target] = party.targets(stream)
  if (target === undefined) throw new Error(`${party.name} listens nowhere`)
  const { statusCode, body } = await request(target.origin + target.path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${target.key}`, ...target.headers },
    body: JSON.stringify(requestBody({ stream, replay: '', withIds: true })),
    signal: AbortSignal.timeout(60_000),
  })
  const bytes = Buffer.from(await body.arrayBuffer())
  if (statusCode !== 200) throw new Error(`it answered ${statusCode}: ${bytes.toString().slice(0, 200)}`)
  const texts = stream ? new SseParser().push(bytes).map(({ data }) => data) : [bytes.toString()]
  if (stream && texts.pop() !== '[DONE]') throw new Error('its stream lacks [DONE]')
  const chunks = texts.map((text) => JSON.parse(text) as Chunk)
  return {
    text: chunks.map(({ choices: [choice] = [] }) => (choice?.message ?? choice?.delta)?.content ?? '').join(''),
    completionTokens: chunks.at(-1)?.usage?.completion_tokens,
    hasIds: /"token_ids": ?\[\d/.test(bytes.toString('latin1')),
  }
}
