import { parseVersion } from './versions.ts'
import { EngineSetupError } from './setup-error.ts'
import { createLlamacppWire } from './llamacpp.ts'
import { createOpenaiWire } from './openai.ts'
import { createSglangWire } from './sglang.ts'
import { createVllmWire } from './vllm.ts'
import type { Wire } from './wire.ts'

export const WIRES = ['vllm', 'sglang', 'llamacpp', 'openai'] as const
export type WireKind = (typeof WIRES)[number]

/** The newest version with known behaviour. */
const NEWEST: Readonly<Record<WireKind, string>> = {
  vllm: '0.32.0',
  sglang: '0.5.18',
  llamacpp: 'b10586-b21e4de7',
  openai: '1',
}

export function createWire(
  kind: WireKind,
  version = NEWEST[kind],
  options: { scaleOut?: boolean } = {},
): { wire: Wire; version: string } {
  if (kind !== 'llamacpp' && parseVersion(version) === undefined) {
    throw new EngineSetupError(`"${version}" is no version of ${kind}; give numbers, as in 0.12.`)
  }
  switch (kind) {
    case 'vllm':
      return { wire: createVllmWire(version, options), version }
    case 'sglang':
      return { wire: createSglangWire(version), version }
    case 'llamacpp':
      return { wire: createLlamacppWire(version), version }
    case 'openai':
      return { wire: createOpenaiWire(), version }
  }
}
