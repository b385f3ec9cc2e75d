import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { installPinned, megabytesOf, sitePackages, versionsOf } from './pinned-environment.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const requirementsFolder = join(root, 'test/trainers/requirements')

export interface TrainerEnvironment {
  python: string
  /** Installed versions by package name, as reported by pip. */
  versions: ReadonlyMap<string, string>
  megabytes: number
}

/**
 * A virtual environment in `.polar` with the packages of `test/trainers/requirements/<name>.txt`. It is cached between
 * runs and recreated when a requirement changes. PyTorch (5 GB) is installed once and shared by a `.pth` file.
 * Returns the reason if the environment cannot be created.
 */
export function installTrainer(name: string): TrainerEnvironment | string {
  const torch = installOnce('torch')
  if (typeof torch === 'string') return torch
  const environment = name === 'torch' ? torch : installOnce(name, sitePackages(torch.folder))
  if (typeof environment === 'string') return environment
  const python = join(environment.folder, 'bin/python')
  return { python, versions: versionsOf(python), megabytes: megabytesOf(environment.folder) }
}

function installOnce(name: string, shared?: string): { folder: string } | string {
  return installPinned(join(root, '.polar/trainers'), name, join(requirementsFolder, `${name}.txt`), shared)
}
