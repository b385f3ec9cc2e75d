import type { NodeInfo } from '../../api/routes/node-routes.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { maySeeNode } from '../listen/access.ts'
import { noNode } from './request-errors.ts'
import { isHealthy, toNodeInfo } from './views.ts'

type NodeRoutes = 'registerNode' | 'heartbeatNode' | 'listNodes' | 'getNode' | 'removeNode' | 'drainNode'

export function nodeHandlers({ dispatch, clock, leaseQueue }: ServerDeps): Some<NodeRoutes> {
  const show = async (nodeId: string): Promise<NodeInfo> => {
    const node = await dispatch.nodes.find(nodeId)
    if (node === undefined) throw noNode(nodeId)
    return toNodeInfo(node, clock.now())
  }
  const drain = async (nodeId: string): Promise<void> => {
    if (!(await dispatch.drainNode(nodeId))) throw noNode(nodeId)
    // Ends a waiting lease request, so that the node learns of it at once.
    leaseQueue.dismiss(nodeId)
  }
  return {
    async registerNode({ body }) {
      await dispatch.putNode({ registration: body, labels: [] })
      return show(body.node_id)
    },
    async heartbeatNode({ params, body }) {
      if (!(await dispatch.touchNode(params.node_id, body.metrics))) throw noNode(params.node_id)
      return show(params.node_id)
    },
    async listNodes({ caller }) {
      const nodes = (await dispatch.nodes.list()).filter((node) => maySeeNode(caller, node.registration.node_id))
      return nodes.map((node) => toNodeInfo(node, clock.now()))
    },
    getNode: ({ params }) => show(params.node_id),
    async removeNode({ params }) {
      await drain(params.node_id)
      const node = await dispatch.nodes.find(params.node_id)
      if (node === undefined) throw noNode(params.node_id)
      // A healthy node that joined leaves by itself when drained; if its row were removed now, it would join again.
      const leavesItself = node.bootId !== undefined && isHealthy(node, clock.now())
      if (!leavesItself) await dispatch.removeIdleNode(params.node_id)
      return toNodeInfo(node, clock.now())
    },
    async drainNode({ params }) {
      await drain(params.node_id)
      return show(params.node_id)
    },
  }
}
