import type { Client } from '../../client/client.ts'
import type { SessionNode } from '../node.ts'

/** The part of a node that a worker has to do with. */
export type WorkerNode = Pick<
  SessionNode,
  'dir' | 'widths' | 'metrics' | 'sessions' | 'submit' | 'forget' | 'progressOf'
>

/** What a worker says to a server. */
export type WorkerClient = Pick<
  Client,
  | 'joinNode'
  | 'leaseSessions'
  | 'renewLeases'
  | 'completeSession'
  | 'releaseLeases'
  | 'drainNode'
  | 'leaveNode'
  | 'beginUpload'
  | 'getUpload'
  | 'putPart'
>
