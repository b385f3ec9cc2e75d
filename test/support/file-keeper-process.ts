/** Uploads small files in two parts each, stores them one after the other, and prints each, until it is killed. */
import { createHash } from 'node:crypto'
import { systemClock } from '../../src/lib/async/clock.ts'
import { openFileStore } from '../../src/store/files.ts'

const [dir = ''] = process.argv.slice(2)
const store = await openFileStore({ dir, clock: systemClock, minFreeBytes: 0 })
for (let i = 0; ; i++) {
  const bytes = createHash('sha512').update(String(i)).digest()
  const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`
  let state = await store.begin({ nodeId: 'n1', sessionId: `ses_${i}`, attempt: 1, bytes: bytes.length, digest })
  while (!state.isComplete) {
    const part = bytes.subarray(state.offset, state.offset < 40 ? 40 : undefined)
    state = await store.append('n1', state.uploadId, state.offset, new Blob([part]).stream())
  }
  const { path } = await store.keep('n1', state.uploadId, { kind: 'result' })
  process.stdout.write(`${i} ${path}\n`)
}
