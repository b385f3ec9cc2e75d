import * as z from 'zod'
import { runtimes } from '../node/sandbox/runtimes/index.ts'
import { exactlyOne, secret } from './fields.ts'

/** The config schemas of the runtimes, with keys in snake_case and passwords replaced by their sources. */
const kinds = (runtimes.config as unknown as z.ZodDiscriminatedUnion<z.ZodObject<Shape>[]>).options

type Shape = Record<string, z.ZodType>

const Login = z
  .strictObject({ registry: z.string().min(1), username: z.string().min(1), ...secret('password', 'the password') })
  .refine(...exactlyOne('password_file', 'password_env'))

export const RuntimesSection = z.strictObject(
  Object.fromEntries(kinds.map((config) => [kindOf(config), toSection(config)])),
)

export type RuntimeSettings = Readonly<Record<string, Readonly<Record<string, unknown>>>>

/** Converts the section to the settings that each runtime accepts. */
export async function toRuntimeSettings(
  section: Readonly<Record<string, Readonly<Record<string, unknown>> | undefined>>,
  loadPassword: (login: z.infer<typeof Login>) => Promise<string>,
): Promise<RuntimeSettings> {
  const entries = Object.entries(section).map(async ([kind, settings]) => {
    const own = Object.entries(settings ?? {}).map(async ([key, value]) => {
      if (key !== 'logins') return [toCamel(key), value] as const
      const logins = (value as z.infer<typeof Login>[]).map(async (login) => ({
        registry: login.registry,
        username: login.username,
        password: await loadPassword(login),
      }))
      return [key, await Promise.all(logins)] as const
    })
    return [kind, Object.fromEntries(await Promise.all(own))] as const
  })
  return Object.fromEntries(await Promise.all(entries))
}

function kindOf(config: z.ZodObject<Shape>): string {
  return (config.shape['kind'] as unknown as z.ZodLiteral<string>).value
}

/** All fields are optional: the runtime applies its defaults, which may depend on the machine. */
function toSection(config: z.ZodObject<Shape>) {
  const fields = Object.entries(config.shape).filter(([key]) => key !== 'kind')
  const shape = fields.map(
    ([key, field]) => [toSnake(key), key === 'logins' ? toLogins(field) : z.optional(field)] as const,
  )
  return z.strictObject(Object.fromEntries(shape)).optional()
}

function toLogins(field: z.ZodType) {
  return z
    .array(Login)
    .optional()
    .describe(field.description ?? '')
}

function toSnake(key: string): string {
  return key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

function toCamel(key: string): string {
  return key.replaceAll(/_([a-z])/g, (_, letter: string) => letter.toUpperCase())
}
