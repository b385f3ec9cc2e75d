/** Harnesses that a task may name. */
export const HARNESS_NAMES = [
  'codex',
  'claude_code',
  'gemini_cli',
  'qwen_code',
  'opencode',
  'pi',
  'mini_swe_agent',
  'aider',
  'openhands',
  'shell',
] as const

/** NVIDIA Polar's names of harnesses with another name in Polar. */
const HARNESS_ALIASES: Readonly<Record<string, string>> = { openhands_sdk: 'openhands' }

const OTHERS = `Supported: ${HARNESS_NAMES.join(', ')}, openhands_sdk; or import_path for a harness of your own.`

/** Harnesses of NVIDIA Polar that are not supported, with the alternative. */
const MISSING_HARNESSES: Readonly<Record<string, string>> = {
  openclaw: `"openclaw" is not supported: no preset starts it. ${OTHERS}`,
  hermes: `"hermes" is not supported: no preset starts it. ${OTHERS}`,
  spilot_router: `"spilot_router" is not supported: it needs a pool of several models behind one gateway. ${OTHERS}`,
  controller_v3: `"controller_v3" is not supported: it needs a pool of several models behind one gateway. ${OTHERS}`,
  oracle_controller_v3: `"oracle_controller_v3" is not supported: it needs a pool of several models behind one gateway. ${OTHERS}`,
  vanillux2: `"vanillux2" is not supported: its mini-swe-agent adapters are not part of that package. Use mini_swe_agent. ${OTHERS}`,
  swe_agent: `"swe_agent" is not supported: no preset starts it. ${OTHERS}`,
}

const MISSING_BUILDERS: Readonly<Record<string, string>> = {
  router_policy:
    '"router_policy" is not supported: it trains a router between several models. Supported: per_request, prefix_merging, prefix_tree.',
}

const MISSING_EVALUATORS: Readonly<Record<string, string>> = {
  harbor_rubric: '"harbor_rubric" is not supported. Use weighted, with a harbor part and a judge part.',
  spilot_harbor: '"spilot_harbor" is not supported: it grades a router between several models. Use harbor.',
}

/** Replaces NVIDIA Polar's name of a harness by Polar's. Returns other names unchanged. */
export function toHarnessName(name: string): string {
  return Object.hasOwn(HARNESS_ALIASES, name) ? HARNESS_ALIASES[name]! : name
}

/** Describes why a strategy of NVIDIA Polar is not supported; undefined for any other name. */
export function whyUnsupported(kind: 'harness' | 'builder' | 'evaluator', name: string): string | undefined {
  const reasons = { harness: MISSING_HARNESSES, builder: MISSING_BUILDERS, evaluator: MISSING_EVALUATORS }[kind]
  return Object.hasOwn(reasons, name) ? reasons[name] : undefined
}
