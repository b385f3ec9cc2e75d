import * as z from 'zod'
import { runtimes, type Plug, type Runtime, type RuntimeDeps } from '../../../src/index.ts'

const GreetingConfig = z.strictObject({ kind: z.literal('greeting'), greeting: z.string().optional() })

/** Example of a user's runtime: `local` with a variable that is set in all sandboxes, if configured. */
export const runtime: Plug<typeof GreetingConfig, RuntimeDeps, Runtime> = {
  config: GreetingConfig,
  create({ kind, greeting }, deps) {
    const local = runtimes.create(runtimes.config.parse({ kind: 'local' }), deps)
    const added: Record<string, string> = greeting === undefined ? {} : { GREETING: greeting }
    return {
      kind,
      capabilities: local.capabilities,
      check: (signal) => local.check(signal),
      start: (spec, signal) => local.start({ ...spec, env: { ...added, ...spec.env } }, signal),
      list: () => local.list(),
      remove: (id) => local.remove(id),
      [Symbol.asyncDispose]: () => local[Symbol.asyncDispose](),
    }
  },
}
