import { installFolder, type HarnessFolders } from '../harness/find-harness.ts'
import { loadBundle } from '../harness/install/harness-bundle.ts'
import { harnesses, presets } from '../harness/presets/index.ts'
import type { OpenRuntimes } from '../sandbox/open-runtimes.ts'
import { runtimes } from '../sandbox/runtimes/index.ts'
import { isRuntimeAllowed } from '../sandbox/host-access.ts'

export interface LabelDeps {
  runtimes: Pick<OpenRuntimes, 'open'>
  /** Runtime kinds that tasks may request; absent: see `HostAccess`. */
  allowed: readonly string[] | undefined
  defaultRuntime: string
  folders: Pick<HarnessFolders, 'dir'>
}

/** Returns the labels of a node: runtimes that can be opened here, and harnesses that are installed here. */
export async function findLabels({ runtimes: opened, allowed, defaultRuntime, folders }: LabelDeps): Promise<string[]> {
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
      const bundle = await loadBundle(installFolder(harness, folders.dir)).catch(() => undefined)
      return bundle === undefined ? [] : [`harness:${harness.name}`]
    }),
  )
  // Presets without a package need no installation.
  const always = presets.filter((preset) => preset.package === undefined).map(({ name }) => `harness:${name}`)
  return [...working.flat(), ...installed.flat(), ...always]
}
