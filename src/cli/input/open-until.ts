import { openEngine, type EngineChoice, type OpenEngine } from '../../compose/open-engine.ts'

/** Opens the engine; undefined if `signal` aborts while the command waits for it. */
export async function openUntil(signal: AbortSignal, choice: EngineChoice): Promise<OpenEngine | undefined> {
  try {
    return await openEngine({ ...choice, signal })
  } catch (error) {
    if (signal.aborted) return undefined
    throw error
  }
}
