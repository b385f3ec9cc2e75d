import { completeSettings } from '../../src/cli/runtime-settings.ts'

/** Config of the bubblewrap runtime with the bwrap of this machine, or the one that is fetched where it has none. */
export const bubblewrapConfig = {
  kind: 'bubblewrap' as const,
  // Without any, the check of the runtime says why.
  ...(await completeSettings('bubblewrap', {}, process.env).catch(() => ({}))),
}

export function runtimeConfig(kind: 'local' | 'bubblewrap') {
  return kind === 'bubblewrap' ? bubblewrapConfig : { kind }
}
