import { expect, test } from 'vitest'
import { emptySession } from '../../../test/support/grade.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { EvaluatorNeeds } from '../../trajectory/evaluators/evaluator.ts'
import { toGraded } from './to-graded.ts'

const SAID = [{ role: 'user', content: 'Hello' }]
const HEARD = [{ source: 'claimed', message: SAID[0] }]

function gradedFor(strategy: string, messages?: boolean) {
  const reads: string[] = []
  const { turns, ...head } = emptySession('ses_1')
  const read = async <T>(name: string, value: T): Promise<T> => {
    reads.push(name)
    return value
  }
  const loaded = {
    head: { ...head, turnCount: 7 },
    readConversation: () => read('conversation', JSON.stringify(SAID)),
    readTranscript: () => read('transcript', JSON.stringify(HEARD)),
    readRecord: () => read<SessionRecord>('record', { ...head, turns }),
  }
  const needs: EvaluatorNeeds = { sandbox: false, agentState: false, ...(messages !== undefined && { messages }) }
  const summary = { rows: 1 } as Parameters<typeof toGraded>[1]['summary']
  return { reads, graded: toGraded(loaded, { summary }, { strategy, needs }) }
}

test('toGraded() loads no messages for an evaluator that declares that it reads none', async () => {
  const { reads, graded } = gradedFor('command', false)
  const { session, conversation, transcript } = await graded
  expect(reads).toEqual([])
  expect(session).toEqual(emptySession('ses_1'))
  expect(conversation).toThrow('needs.messages')
  expect(transcript).toThrow('needs.messages')
})

test('toGraded() loads the messages once for an evaluator that reads them', async () => {
  const { reads, graded } = gradedFor('judge', true)
  const { conversation, transcript } = await graded
  expect([conversation(), conversation(), transcript()]).toEqual([SAID, SAID, HEARD])
  expect(reads).toEqual(['conversation', 'transcript'])
})

test('toGraded() loads the messages and the record for a module that declares nothing', async () => {
  const { reads, graded } = gradedFor('/opt/answer.ts')
  expect([(await graded).conversation(), (await graded).transcript()]).toEqual([SAID, HEARD])
  expect(reads.toSorted()).toEqual(['conversation', 'record', 'transcript'])
})
