import { writeFile } from 'node:fs/promises'
import { parseScript, type ScriptInput, type Step } from '../../packages/tiny-engine/src/policies/script-schema.ts'
import { toTurnText } from '../../packages/tiny-engine/src/policies/script.ts'
import type { Tokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'

/** A turn for python/forced_turns.py: exact tokens, `free` tokens of the model before the end, or no constraint. */
export type ForcedTurn = { ids: readonly number[] } | { free: number } | null

export interface ForcedScript {
  scenarios: Readonly<Record<string, readonly ForcedTurn[]>>
  default?: ForcedTurn
}

export function writeForcedScript(file: string, script: ForcedScript): Promise<void> {
  return writeFile(file, JSON.stringify(script))
}

/** Tokenises a script of the tiny engine, so that vLLM plays the same answers. Faults and delays are left out. */
export function toForcedScript(script: string | ScriptInput, tokenizer: Tokenizer): ForcedScript {
  const { scenarios, default: otherwise } = parseScript(script)
  const toTurn = (step: Step): ForcedTurn => ({
    ids: step.tokens === undefined ? encodeTurn(toTurnText(step), tokenizer) : loadIds(step.tokens, tokenizer),
  })
  return {
    scenarios: Object.fromEntries(Object.entries(scenarios).map(([name, steps]) => [name, steps.map(toTurn)])),
    default: otherwise === undefined ? null : toTurn(otherwise),
  }
}

function encodeTurn(text: string, tokenizer: Tokenizer): number[] {
  return [...tokenizer.encode(text, { parseSpecial: false }), tokenizer.eosId]
}

/** `count` ordinary tokens. */
function loadIds(count: number, tokenizer: Tokenizer): number[] {
  const words = Array.from(tokenizer.encode(' one two three four five six seven', { parseSpecial: false }))
  return Array.from({ length: count }, (_, i) => words[i % words.length]!)
}

/**
 * Tokens of a text in pieces of one to three characters: a model may sample them, but no tokenizer writes the text so. A
 * prompt that is rendered again from the text has other tokens.
 */
export function splitBadly(text: string, tokenizer: Tokenizer): number[] {
  const characters = Array.from(text)
  const ids: number[] = []
  for (let at = 0, width = 1; at < characters.length; at += width, width = (width % 3) + 1) {
    ids.push(...tokenizer.encode(characters.slice(at, at + width).join(''), { parseSpecial: false }))
  }
  return ids
}

/**
 * A conversation with a tool call in badly split tokens in every third turn. The model samples the other turns; each ends
 * after at most `free` tokens.
 */
export function toolConversation(turns: number, free: number, tokenizer: Tokenizer): ForcedTurn[] {
  return Array.from({ length: turns }, (_, i): ForcedTurn => {
    if (i % 3 !== 0) return { free: free + (i % 5) }
    const call = { name: 'bash', arguments: `{"command":  "ls -la dir${i} && echo \\"hi\\""}` }
    const text = toTurnText({ text: i % 2 === 0 ? 'I look first.' : '', tool_calls: [call] })
    return { ids: [...splitBadly(text, tokenizer), tokenizer.eosId] }
  })
}
