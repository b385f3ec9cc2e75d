import { completeSettings } from '../../src/compose/runtime-settings.ts'

/** Settings that name the bwrap of this machine, or the fetched bwrap. Without either, the check of the runtime reports the reason. */
export const bubblewrapSettings: Readonly<Record<string, unknown>> = await completeSettings(
  'bubblewrap',
  {},
  process.env,
).catch(() => ({}))

export const bubblewrapConfig = { kind: 'bubblewrap' as const, ...bubblewrapSettings }

export function runtimeConfig(kind: 'local' | 'bubblewrap') {
  return kind === 'bubblewrap' ? bubblewrapConfig : { kind }
}
