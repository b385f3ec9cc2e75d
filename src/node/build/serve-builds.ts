import { toFailure } from '../../model/failure.ts'
import type { BuildReply, BuildRequest } from './build-protocol.ts'
import type { LoadedSession, SessionBuilds } from './session-build.ts'

/** The methods of `process` that connect a child process to its parent. */
export type ParentLink = Pick<NodeJS.Process, 'on' | 'send' | 'exit'>

/** Handles the requests of a node in a build process. Exits when the node process ends. */
export function serveBuilds(parent: ParentLink, opening: Promise<SessionBuilds>): void {
  let session: LoadedSession | undefined
  const answer = async (request: BuildRequest): Promise<unknown> => {
    switch (request.kind) {
      case 'load':
        session = await (await opening).load(request.sessionId)
        return session.head
      case 'call': {
        if (session === undefined) throw new Error('the process has no session')
        const method = session[request.method] as (...args: unknown[]) => Promise<unknown>
        return method.call(session, ...request.args)
      }
      case 'release':
        session = undefined
        return undefined
    }
  }
  const reply = (message: BuildReply): void => void parent.send?.(message)
  parent.on('message', (request: unknown) => {
    void answer(request as BuildRequest).then(
      (value) => reply({ value }),
      (error: unknown) => reply({ failure: toFailure(error) }),
    )
  })
  parent.on('disconnect', () => parent.exit())
}
