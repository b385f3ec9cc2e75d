import { leaseRoutes } from './lease-routes.ts'
import { nodeRoutes } from './node-routes.ts'
import { serverRoutes } from './server-routes.ts'
import { sessionRoutes } from './session-routes.ts'
import { taskRoutes } from './task-routes.ts'
import { uploadRoutes } from './upload-routes.ts'

/**
 * The rollout server's HTTP contract. Validation, the typed client and `docs/openapi.json` are all made from this. The
 * trainer-facing paths, fields and status words are NVIDIA Polar's; all that is `origin: 'polar'` is ours.
 */
export const routes = {
  ...taskRoutes,
  ...sessionRoutes,
  ...nodeRoutes,
  ...leaseRoutes,
  ...uploadRoutes,
  ...serverRoutes,
}
export type Routes = typeof routes
