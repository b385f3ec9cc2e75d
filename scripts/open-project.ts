import { mkdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { isProgram } from './system-packages.ts'

/**
 * Runs a command in a mount namespace in which every user may enter the project's folder. Its parent folders are overlaid with
 * readable folders in memory; the project's folder is a readable folder with the real entries.
 */
const SCRIPT = `set -eu
hidden=$1 project=$2; shift 2
layers=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$layers"
mkdir "$layers/real" "$layers/upper" "$layers/work"
mount --rbind "$project" "$layers/real"
if [ "$hidden" != "$project" ]; then
  mount -t overlay overlay -o "lowerdir=$hidden,upperdir=$layers/upper,workdir=$layers/work" "$hidden"
  each=$(dirname -- "$project")
  while [ "$each" != / ]; do case "$each/" in "$hidden"/*) chmod a+x "$each";; esac; each=$(dirname -- "$each"); done
fi
mount -t tmpfs -o mode=755 tmpfs "$project"
cd "$project"
for entry in $(ls -A "$layers/real"); do
  if [ -d "$layers/real/$entry" ]; then mkdir "$entry"; else : > "$entry"; fi
  mount --rbind "$layers/real/$entry" "$entry"
done
exec "$@"
`

/** Command prefix for root, with which tests of another user can read the project. Empty if they can read it anyway. */
export function openProjectPrefix(): string[] {
  const project = dirname(import.meta.dirname)
  const hidden = findHidden(project)
  if (process.getuid?.() !== 0 || hidden === undefined || !isProgram('unshare')) return []
  mkdirSync(join(project, '.polar'), { recursive: true })
  return ['unshare', '--mount', '--propagation', 'private', '/bin/sh', '-c', SCRIPT, 'sh', hidden, project]
}

/** Returns the outermost parent of `path`, or `path` itself, that other users may not enter. */
function findHidden(path: string): string | undefined {
  const names = path.split('/').slice(1)
  const folders = names.map((_, index) => `/${names.slice(0, index + 1).join('/')}`)
  return folders.find((folder) => (statSync(folder).mode & 0o001) === 0)
}
