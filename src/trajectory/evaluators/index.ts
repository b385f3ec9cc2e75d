import { plugs } from '../../lib/plug.ts'
import type { EvaluatorPlug } from './evaluator.ts'
import { command } from './command.ts'
import { harbor } from './harbor.ts'
import { http } from './http.ts'
import { judge } from './judge.ts'
import { sessionCompleted } from './session-completed.ts'
import { swebench, swebenchHarness } from './swebench.ts'
import { testOnOutput } from './test-on-output.ts'
import { weighted } from './weighted.ts'

const single = [sessionCompleted, testOnOutput, command, harbor, judge, http, swebench, swebenchHarness] as const

/** Built-in evaluators and `modules`. Each, except `weighted`, can be a part of a `weighted`. */
export function evaluatorsWith(modules: readonly EvaluatorPlug[]) {
  const parts = plugs([...single, ...modules])
  return plugs([...single, ...modules, weighted(parts)])
}

export const evaluators = evaluatorsWith([])
