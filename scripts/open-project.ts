import { mkdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { isProgram } from './system-packages.ts'

/**
 * Runs a command in a mount namespace in which every user may enter the project's folder. Folders above it are laid over with
 * open ones in memory; the project's folder is an open one whose entries are the real ones.
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

/** Put before a command of root, this lets tests that go on as another user reach the project. Empty where they can anyway. */
export function openProjectPrefix(): string[] {
  const project = dirname(import.meta.dirname)
  const hidden = findHidden(project)
  if (process.getuid?.() !== 0 || hidden === undefined || !isProgram('unshare')) return []
  mkdirSync(join(project, '.polar'), { recursive: true })
  return ['unshare', '--mount', '--propagation', 'private', '/bin/sh', '-c', SCRIPT, 'sh', hidden, project]
}

/** The outermost folder on the way to `path`, or `path` itself, that other users may not enter. */
function findHidden(path: string): string | undefined {
  const names = path.split('/').slice(1)
  const folders = names.map((_, index) => `/${names.slice(0, index + 1).join('/')}`)
  return folders.find((folder) => (statSync(folder).mode & 0o001) === 0)
}
