import { installFolder, type HarnessPlaces } from '../harness/find-harness.ts'
import { loadBundle } from '../harness/install/harness-bundle.ts'
import { harnesses, presets } from '../harness/presets/index.ts'
import type { OpenRuntimes } from '../sandbox/open-runtimes.ts'
import { runtimes } from '../sandbox/runtimes/index.ts'
import { isRuntimeAllowed } from '../sandbox/host-access.ts'

export interface LabelDeps {
  runtimes: Pick<OpenRuntimes, 'open'>
  /** Kinds that tasks may ask for; absent: see `HostAccess`. */
  allowed: readonly string[] | undefined
  defaultRuntime: string
  places: Pick<HarnessPlaces, 'dir'>
}

/** What a node has, found by trying: kinds of sandbox that work here, harnesses that can be brought into any of them. */
export async function findLabels({ runtimes: opened, allowed, defaultRuntime, places }: LabelDeps): Promise<string[]> {
  const kinds = runtimes.kinds.filter((kind) => isRuntimeAllowed(kind, allowed, defaultRuntime))
  const working = await Promise.all(
    kinds.map((kind) =>
      opened.open({ backend: kind, prepare: [], env: {}, gpus: 0, kwargs: {} }).then(
        () => [`runtime:${kind}`],
        () => [],
      ),
    ),
  )
  const installed = await Promise.all(
    harnesses.map(async (harness) => {
      const bundle = await loadBundle(installFolder(harness, places.dir)).catch(() => undefined)
      return bundle === undefined ? [] : [`harness:${harness.name}`]
    }),
  )
  // Those that are no programs of their own need nothing.
  const always = presets.filter((preset) => preset.package === undefined).map(({ name }) => `harness:${name}`)
  return [...working.flat(), ...installed.flat(), ...always]
}
