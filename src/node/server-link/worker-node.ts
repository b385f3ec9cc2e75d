import type { Client } from '../../client/client.ts'
import type { SessionNode } from '../node.ts'

/** The methods of a node that a worker uses. */
export type WorkerNode = Pick<
  SessionNode,
  'dir' | 'widths' | 'metrics' | 'sessions' | 'submit' | 'archive' | 'progressOf'
>

/** The requests that a worker sends to a server. */
export type WorkerClient = Pick<
  Client,
  | 'joinNode'
  | 'leaseSessions'
  | 'renewLeases'
  | 'pollPolicy'
  | 'completeSession'
  | 'releaseLeases'
  | 'drainNode'
  | 'leaveNode'
  | 'beginUpload'
  | 'getUpload'
  | 'putPart'
>
