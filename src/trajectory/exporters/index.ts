import type { Exporter } from './exporter.ts'
import { jsonl } from './jsonl.ts'

export const exporters: readonly Exporter[] = [jsonl]
