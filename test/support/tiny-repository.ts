import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

/** Files by path; null deletes a file. */
export type Files = Readonly<Record<string, string | null>>

export interface TinyRepository {
  /** Archive of the repository, to be unpacked in a sandbox. */
  archive: string
  baseCommit: string
  /** Returns a change of files as a patch against the base. */
  patchOf(files: Files): string
}

const WHO = ['-c', 'user.name=test', '-c', 'user.email=test@localhost', '-c', 'commit.gpgsign=false']

/** Creates a repository with one commit below `dir`. */
export function createTinyRepository(dir: string, files: Files): TinyRepository {
  const folder = mkdtempSync(join(dir, 'repository-'))
  const archive = `${folder}.tar`
  git(folder, 'init', '-q', '-b', 'main')
  write(folder, files)
  git(folder, 'add', '-A')
  git(folder, ...WHO, 'commit', '-q', '-m', 'Begin')
  execFileSync('tar', ['cf', archive, '-C', folder, '.'])
  return {
    archive,
    baseCommit: git(folder, 'rev-parse', 'HEAD').trim(),
    patchOf(changes) {
      write(folder, changes)
      git(folder, 'add', '-A')
      const patch = git(folder, 'diff', '--cached', '--binary', 'HEAD')
      git(folder, 'reset', '-q', '--hard', 'HEAD')
      return patch
    },
  }
}

function write(folder: string, files: Files): void {
  for (const [path, text] of Object.entries(files)) {
    const place = join(folder, path)
    if (text === null) rmSync(place)
    else {
      mkdirSync(dirname(place), { recursive: true })
      writeFileSync(place, text)
    }
  }
}

function git(folder: string, ...args: string[]): string {
  const env = { PATH: '/usr/local/bin:/usr/bin:/bin', GIT_CONFIG_NOSYSTEM: '1', HOME: folder }
  return execFileSync('git', args, { cwd: folder, encoding: 'utf8', env })
}
