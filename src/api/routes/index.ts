import { leaseRoutes } from './lease-routes.ts'
import { nodeRoutes } from './node-routes.ts'
import { policyRoutes } from './policy-routes.ts'
import { serverRoutes } from './server-routes.ts'
import { sessionRoutes } from './session-routes.ts'
import { taskRoutes } from './task-routes.ts'
import { uploadRoutes } from './upload-routes.ts'

/**
 * The rollout server's HTTP contract: source of validation, typed client and `docs/openapi.json`. Trainer-facing paths, fields
 * and statuses are NVIDIA Polar's; routes with `origin: 'polar'` are ours.
 */
export const routes = {
  ...taskRoutes,
  ...sessionRoutes,
  ...nodeRoutes,
  ...leaseRoutes,
  ...uploadRoutes,
  ...policyRoutes,
  ...serverRoutes,
}
export type Routes = typeof routes
