/** Returns NaN where the engine had no log probability: vLLM writes -9999 then, and llama.cpp the lowest float. */
export function toLogprob(value: number | null | undefined): number {
  return value == null || value <= -9999 ? Number.NaN : value
}
