/** A stored prompt: its new ids, and a reference to the rest. */
export interface StoredPrompt {
  /** The first `length` ids of that prompt followed by the sampled ids of `choice`. Absent: `tail` is the whole prompt. */
  base?: { prompt: StoredPrompt; choice: number; length: number }
  tail: Int32Array
  /** The ids of each choice. */
  sampled: Int32Array[]
}

export interface ResolvedPrompt {
  ids: Int32Array
  sampled: Int32Array[]
}

const NO_IDS = new Int32Array(0)

export function promptLength({ base, tail }: StoredPrompt): number {
  return (base?.length ?? 0) + tail.length
}

/**
 * Restores all prompts; a base must precede the prompts that refer to it. A prompt that continues exactly at the end of its base
 * shares the memory of the base: a session of many turns needs the memory of its last prompt, not of the sum.
 */
export function resolvePrompts(prompts: readonly StoredPrompt[]): Map<StoredPrompt, ResolvedPrompt> {
  const successors = new Map<StoredPrompt, StoredPrompt>()
  for (const prompt of prompts) {
    if (prompt.base !== undefined && isContinuation(prompt.base) && !successors.has(prompt.base.prompt)) {
      successors.set(prompt.base.prompt, prompt)
    }
  }
  const resolved = new Map<StoredPrompt, ResolvedPrompt>()
  for (const prompt of prompts) {
    const isSuccessor = prompt.base !== undefined && successors.get(prompt.base.prompt) === prompt
    if (!isSuccessor) layOut(prompt, successors, resolved)
  }
  return resolved
}

/** Whether the reference includes all ids that were sampled after the base. */
function isContinuation({ prompt, choice, length }: NonNullable<StoredPrompt['base']>): boolean {
  return length === promptLength(prompt) + (prompt.sampled[choice]?.length ?? 0)
}

/** Writes one prompt and all that continue it into one array. */
function layOut(
  first: StoredPrompt,
  successors: ReadonlyMap<StoredPrompt, StoredPrompt>,
  resolved: Map<StoredPrompt, ResolvedPrompt>,
): void {
  let last = first
  for (let next = successors.get(last); next !== undefined; next = successors.get(last)) last = next
  const memory = new Int32Array(promptLength(last))
  copyShared(first, resolved, memory)
  for (let prompt: StoredPrompt | undefined = first; prompt !== undefined; prompt = successors.get(prompt)) {
    const end = promptLength(prompt)
    memory.set(prompt.tail, end - prompt.tail.length)
    const sampled = [...prompt.sampled]
    const choice = successors.get(prompt)?.base?.choice
    const chosen = choice === undefined ? undefined : sampled[choice]
    if (choice !== undefined && chosen !== undefined) {
      memory.set(chosen, end)
      sampled[choice] = memory.subarray(end, end + chosen.length)
    }
    resolved.set(prompt, { ids: memory.subarray(0, end), sampled })
  }
}

function copyShared(
  { base }: StoredPrompt,
  resolved: ReadonlyMap<StoredPrompt, ResolvedPrompt>,
  memory: Int32Array,
): void {
  if (base === undefined) return
  const source = resolved.get(base.prompt)
  if (source === undefined) throw new Error('A prompt precedes its base')
  memory.set(source.ids.subarray(0, base.length))
  const sampled = source.sampled[base.choice] ?? NO_IDS
  const rest = base.length - source.ids.length
  if (rest > 0) memory.set(sampled.subarray(0, rest), source.ids.length)
}
