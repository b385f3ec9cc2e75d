/** A server of uploads only. Runs until it is killed. */
import { mountRoutes } from '../../src/api/mount.ts'
import { uploadRoutes } from '../../src/api/routes/upload-routes.ts'
import { systemClock } from '../../src/lib/async/clock.ts'
import { RolloutError } from '../../src/model/failure.ts'
import { listen } from '../../src/server/listen/listen.ts'
import { openFileStore, type UploadState } from '../../src/store/files.ts'

const [dir = ''] = process.argv.slice(2)
const store = await openFileStore({ dir, clock: systemClock, minFreeBytes: 0 })
const app = mountRoutes({
  table: uploadRoutes,
  authorize: () => undefined,
  onBug: (error) => console.error(error),
  handlers: {
    async beginUpload({ params, body }) {
      const { session_id: sessionId, attempt, bytes, digest } = body
      return toWire(await store.begin({ nodeId: params.node_id, sessionId, attempt, bytes, digest }))
    },
    async getUpload({ params }) {
      const state = await store.find(params.node_id, params.upload_id)
      if (state === undefined) throw new RolloutError('request.not-found', 'There is no such upload.')
      return toWire(state)
    },
    async putPart({ params, query, body }) {
      return toWire(await store.append(params.node_id, params.upload_id, query.offset, body, query.digest))
    },
  },
})
const { url } = await listen(app, { host: '127.0.0.1', port: 0 })
process.stdout.write(`${url}\n`)

function toWire({ uploadId, offset, bytes, digest, isComplete }: UploadState) {
  return { upload_id: uploadId, offset, bytes, digest, is_complete: isComplete }
}
