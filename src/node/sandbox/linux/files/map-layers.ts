import { chown, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { HOST_ENV } from './paths.ts'

/** Number of the system call unshare; the numbers of newer calls are the same on all architectures. */
const UNSHARE: Partial<Record<NodeJS.Architecture, number>> = { x64: 272, arm64: 97 }

const mapLayers = loadProgram(new URL('./map-layers.pl', import.meta.url))

/** Environment variables of map-layers.pl, except for the layers, and the program itself. */
export function mapVariables(shared: number, own: number, count: number): Record<string, string> {
  const unshare = UNSHARE[process.arch] ?? 0
  return {
    MAP_LAYERS: mapLayers(),
    UNSHARE: String(unshare),
    SHARED: String(shared),
    OWN: String(own),
    MAPPED: String(count),
  }
}

const tryMapLayers = loadProgram(new URL('./try-map-layers.sh', import.meta.url))

/** Tests whether layers below `dir` can be mapped, which depends on the kernel and the file system. */
export async function canMapLayers(dir: string, shared: number): Promise<boolean> {
  if (UNSHARE[process.arch] === undefined) return false
  const scratch = await mkdtemp(join(dir, 'map-'))
  try {
    const [layer, own] = [join(scratch, 'layer'), shared + 1]
    await mkdir(layer)
    await writeFile(join(layer, 'file'), '')
    await chown(join(layer, 'file'), shared, shared)
    const { exitCode, stdout } = await runProgram(
      ['unshare', '--mount', '--propagation', 'private', '/bin/sh', '-c', tryMapLayers()],
      { env: { ...HOST_ENV, LAYER_0: layer, ...mapVariables(shared, own, 1) } },
    )
    return exitCode === 0 && stdout.trim() === String(own)
  } catch {
    return false
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}
