import * as z from 'zod'

/** The discriminator of a config schema. */
export type KindSchema = z.ZodObject<{ kind: z.ZodLiteral<string> }>

/** One implementation at a plug point, as a plain value: the config it accepts and how to make it. */
export interface Plug<Config extends KindSchema, Deps, Instance> {
  config: Config
  create(config: z.infer<Config>, deps: Deps): Instance
}

/** Registry of the implementations of one plug point. */
export interface Plugs<Config, Deps, Instance> {
  /** In the order of the list. */
  kinds: readonly string[]
  /** Schema of the configs of all kinds. The error for an unknown kind lists the valid kinds. */
  config: z.ZodType<Config>
  create(config: Config, deps: Deps): Instance
}

type AnyPlug = Plug<KindSchema, never, unknown>
type ConfigOf<P extends AnyPlug> = z.infer<P['config']>
type DepsOf<P extends AnyPlug> = Parameters<P['create']>[1]
type InstanceOf<P extends AnyPlug> = ReturnType<P['create']>

/** Creates a registry from a list of implementations. */
export function plugs<const List extends readonly [AnyPlug, ...AnyPlug[]]>(
  list: List,
): Plugs<ConfigOf<List[number]>, DepsOf<List[number]>, InstanceOf<List[number]>> {
  const byKind = new Map(list.map((plug) => [plug.config.shape.kind.value, plug]))
  const kinds = [...byKind.keys()]
  const error = `must be one of ${kinds.join(', ')}`
  const [first, ...others] = list
  const config = z.discriminatedUnion('kind', [first.config, ...others.map((plug) => plug.config)], {
    error: (issue) => (issue.code === 'invalid_union' ? error : undefined),
  })
  return {
    kinds,
    config: config as unknown as z.ZodType<ConfigOf<List[number]>>,
    create(chosen, deps) {
      const plug = byKind.get(chosen.kind)
      if (plug === undefined) throw new RangeError(`kind ${error}`)
      return plug.create(chosen, deps) as InstanceOf<List[number]>
    },
  }
}
