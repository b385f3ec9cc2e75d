import { accessSync, constants, readFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'

export interface SystemPackage {
  /** Name of the Debian package. */
  name: string
  /** A program of the package; if it is in PATH, the package is not needed. */
  program: string
}

/** Administrators' programs are not in every user's PATH. */
const ADMIN_FOLDERS = ['/usr/local/sbin', '/usr/sbin', '/sbin']

/** Returns the packages of system-packages.txt whose programs this machine lacks. */
export function missingSystemPackages(): SystemPackage[] {
  const lines = readFileSync(join(import.meta.dirname, 'system-packages.txt'), 'utf8').split('\n')
  const packages = lines.flatMap((line) => {
    const [name, program] = line.split(/\s+/)
    return name === undefined || program === undefined || name.startsWith('#') ? [] : [{ name, program }]
  })
  return packages.filter(({ program }) => !isProgram(program))
}

export function isProgram(name: string): boolean {
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), ...ADMIN_FOLDERS]
  return folders.some((folder) => {
    try {
      accessSync(join(folder, name), constants.X_OK)
      return true
    } catch {
      return false
    }
  })
}
