import type { NodeInfo } from '../../api/routes/node-routes.ts'
import {
  drainNode,
  findNode,
  listNodes,
  putNode,
  removeIdleNode,
  touchNode,
} from '../../store/dispatch/queries/nodes.ts'
import { maySeeNode } from '../listen/access.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { noNode } from './not-found.ts'
import { isHealthy, toNodeInfo } from './views.ts'

type NodeRoutes = 'registerNode' | 'heartbeatNode' | 'listNodes' | 'getNode' | 'removeNode' | 'drainNode'

export function nodeHandlers({ database, clock, desk }: ServerDeps): Some<NodeRoutes> {
  const { db } = database
  const show = async (nodeId: string): Promise<NodeInfo> => {
    const node = await findNode(db, nodeId)
    if (node === undefined) throw noNode(nodeId)
    return toNodeInfo(node, clock.now())
  }
  const drain = async (nodeId: string): Promise<void> => {
    if (!(await drainNode(db, nodeId))) throw noNode(nodeId)
    // It hears of it at once if it is waiting here, else when it next asks.
    desk.dismiss(nodeId)
  }
  return {
    async registerNode({ body }) {
      await putNode(db, { registration: body, labels: [] }, clock.now())
      return show(body.node_id)
    },
    async heartbeatNode({ params, body }) {
      if (!(await touchNode(db, params.node_id, body.metrics, clock.now()))) throw noNode(params.node_id)
      return show(params.node_id)
    },
    async listNodes({ caller }) {
      const nodes = (await listNodes(db)).filter((node) => maySeeNode(caller, node.registration.node_id))
      return nodes.map((node) => toNodeInfo(node, clock.now()))
    },
    getNode: ({ params }) => show(params.node_id),
    async removeNode({ params }) {
      await drain(params.node_id)
      const node = await findNode(db, params.node_id)
      if (node === undefined) throw noNode(params.node_id)
      // One that has joined and is there leaves by itself; would it be gone now, it would come back and be given work.
      const leavesItself = node.bootId !== undefined && isHealthy(node, clock.now())
      if (!leavesItself) await removeIdleNode(db, params.node_id)
      return toNodeInfo(node, clock.now())
    },
    async drainNode({ params }) {
      await drain(params.node_id)
      return show(params.node_id)
    },
  }
}

/** Those that were told to go, hold nothing, and have not been heard of: nobody will come to say that they left. */
export async function removeGoneNodes({ database, clock }: Pick<ServerDeps, 'database' | 'clock'>): Promise<void> {
  for (const node of await listNodes(database.db)) {
    if (node.draining && node.leased === 0 && !isHealthy(node, clock.now())) {
      await removeIdleNode(database.db, node.registration.node_id)
    }
  }
}
