import { plugs } from '../../lib/plug.ts'
import { jsonl } from './jsonl.ts'

export const exporters = plugs([jsonl])
