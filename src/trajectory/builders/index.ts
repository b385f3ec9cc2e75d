import { plugs } from '../../lib/plug.ts'
import { perRequest } from './per-request.ts'
import { prefixMerging } from './prefix-merging.ts'
import { prefixTree } from './prefix-tree.ts'

export const builders = plugs([perRequest, prefixMerging, prefixTree])
