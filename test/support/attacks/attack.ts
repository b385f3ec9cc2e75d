import type { AttackRange, EndedSession } from './attack-range.ts'

/** Target that an attack tries to gain or to damage. */
export type Target = 'reward' | 'training data' | 'node' | 'neighbour' | 'machine'

/** Defence that an attack tests. `further`: no particular defence. */
export type Defence =
  | 'body limits'
  | 'socket errors'
  | 'resource limits'
  | 'no unsandboxed run'
  | 'no links'
  | 'always graded'
  | 'protected files'
  | 'bounded rewards'
  | 'engine fields'
  | 'edges'
  | 'further'

export interface AttackTitle {
  /** Unique; letters, digits and dashes. */
  id: string
  /** What the agent does, as one sentence without a full stop. */
  title: string
  defence: Defence
  target: Target
}

/** One attack of the catalogue. Every runtime runs the same attacks. */
export interface Attack extends AttackTitle {
  /** Why the attack does not apply to a runtime or to this machine; undefined when it applies. */
  whyNot?(range: AttackRange): string | undefined
  /** Attacks a node with a real sandbox. Resolves when the defence holds; rejects when the attack succeeds. */
  run(range: AttackRange): Promise<void>
}

export interface RaidPart extends AttackTitle {
  /** Bash script of the agent. It runs in a subshell. */
  script: string | ((range: AttackRange) => string | Promise<string>)
  /** Asserts that the defence held. `printed` is the output of the script, both streams. */
  holds(printed: string, raid: { range: AttackRange; session: EndedSession }): void | Promise<void>
}

export interface RaidOptions {
  /** Fields of the task besides the agent. */
  task?(range: AttackRange): Record<string, unknown> | Promise<Record<string, unknown>>
  whyNot?(range: AttackRange): string | undefined
}

/** Several attacks by one agent in one session, so that they share the cost of a sandbox. */
export function raid(name: string, options: RaidOptions, parts: readonly RaidPart[]): Attack[] {
  const runAll = async (range: AttackRange): Promise<EndedSession> => {
    const scripts: string[] = []
    for (const { id, script } of parts) {
      const text = typeof script === 'string' ? script : await script(range)
      scripts.push(`mark ${id}\n(\n${text}\n) 2>&1 </dev/null`)
    }
    return range.run(scripts.join('\n'), await options.task?.(range))
  }
  return parts.map(({ script: _, holds, ...about }) => ({
    ...about,
    ...(options.whyNot === undefined ? {} : { whyNot: options.whyNot }),
    async run(range) {
      const session = await range.once(name, () => runAll(range))
      await holds(session.section(about.id), { range, session })
    },
  }))
}
