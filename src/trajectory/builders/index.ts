import type { Builder } from './builder.ts'
import { perRequest } from './per-request.ts'

export const builders: readonly Builder[] = [perRequest]
