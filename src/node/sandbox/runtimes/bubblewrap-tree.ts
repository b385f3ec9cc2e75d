import { createHash, randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import { access, cp, lstat, mkdir, readlink, rename, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import { errnoOf } from '../../../lib/fs/errno.ts'
import { RAISE_OOM_SCORE } from '../linux/limits/oom-score.ts'
import { INSIDE_HOME, INSIDE_ID } from '../linux/files/paths.ts'

/**
 * What of /etc is visible, besides what is made here: names of the network, certificates, what the loader and shells
 * need. Anything else may hold secrets.
 */
const ETC = [
  'alternatives',
  'bash.bashrc',
  'ca-certificates',
  'ca-certificates.conf',
  'debian_version',
  'inputrc',
  'java-17-openjdk',
  'ld.so.cache',
  'ld.so.conf',
  'ld.so.conf.d',
  'localtime',
  'magic',
  'mime.types',
  'os-release',
  'pki/ca-trust/extracted',
  'pki/tls/certs',
  'profile',
  'protocols',
  'python3',
  'rpc',
  'services',
  'shells',
  'ssl/certs',
  'ssl/openssl.cnf',
  'terminfo',
  'timezone',
]

const MADE_ETC: Readonly<Record<string, string>> = {
  passwd: `root:x:0:0:root:/root:/bin/sh\nagent:x:${INSIDE_ID}:${INSIDE_ID}:agent:${INSIDE_HOME}:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n`,
  group: `root:x:0:\nagent:x:${INSIDE_ID}:\nnogroup:x:65534:\n`,
  hosts: '127.0.0.1 localhost\n::1 localhost\n',
  'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
  'resolv.conf': '',
}

const EMPTY = ['dev', 'etc', 'home', 'proc', 'root', 'run', 'sys', 'tmp', 'var', 'var/tmp', 'mnt', 'srv']
const MERGED = ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32']

/** What a sandbox without an image sees of the machine: a small tree of its own, and folders bound over it, read-only. */
export interface MachineTree {
  base: string
  /** Folders of the machine that appear inside under the same path. */
  folders: string[]
}

/** Makes the small tree below `dir`, or finds the one that was made when the machine's libraries were the same. */
export async function prepareMachineTree(dir: string, visible: readonly string[]): Promise<MachineTree> {
  const folders: string[] = []
  for (const path of visible) if (await isDirectory(path)) folders.push(path)
  const links: [name: string, target: string][] = []
  for (const name of MERGED) {
    const stats = await lstat(`/${name}`).catch(() => undefined)
    if (stats?.isSymbolicLink() === true) links.push([name, await readlink(`/${name}`)])
    else if (stats?.isDirectory() === true) folders.push(`/${name}`)
  }
  const cache = await stat('/etc/ld.so.cache').catch(() => undefined)
  const key = JSON.stringify([ETC, MADE_ETC, folders, links, cache?.mtimeMs])
  const base = join(dir, `base-${createHash('sha256').update(key).digest('hex').slice(0, 16)}`)
  if (await isDirectory(base)) return { base, folders }
  const draft = `${base}.${randomUUID()}`
  await makeDirectories(draft, 0o755)
  for (const name of EMPTY) await mkdir(join(draft, name), { mode: 0o755 })
  for (const folder of folders) await mkdir(join(draft, folder), { recursive: true, mode: 0o755 })
  for (const [name, target] of links) await symlink(target, join(draft, name))
  for (const name of ETC) await copyIfReadable(join('/etc', name), join(draft, 'etc', name))
  for (const [name, content] of Object.entries(MADE_ETC)) await writeFile(join(draft, 'etc', name), content)
  await rename(draft, base).catch(async (error: unknown) => {
    await rm(draft, { recursive: true, force: true })
    if (errnoOf(error) !== 'ENOTEMPTY' && errnoOf(error) !== 'EEXIST') throw error
  })
  return { base, folders }
}

async function copyIfReadable(from: string, to: string): Promise<void> {
  const isReadable = (path: string) =>
    access(path, constants.R_OK).then(
      () => true,
      () => false,
    )
  // A link may well lead to nowhere on this machine; it is a link all the same.
  if ((await lstat(from).catch(() => undefined)) === undefined) return
  await mkdir(dirname(to), { recursive: true, mode: 0o755 })
  await cp(from, to, {
    recursive: true,
    verbatimSymlinks: true,
    filter: async (path) => (await lstat(path)).isSymbolicLink() || isReadable(path),
  })
}

async function isDirectory(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined))?.isDirectory() === true
}

/**
 * First half of a start: puts the tree together in a mount namespace of its own, which vanishes with its last process.
 * /sys is the place, because it is on every machine and nothing of ours is ever below it. Runs as whoever we are, so that
 * folders only we may enter can be used. New directories go to the upper layer, which is still empty: nothing a sandbox
 * left behind can lead them elsewhere. The root can be added to, as tasks expect that keep things in /app, /tests or /logs;
 * what is in it already stays.
 */
export const GATHER = `set -eu
${RAISE_OOM_SCORE}
cd "$FOLDER"
mount -t tmpfs -o mode=755,size=1m polar /sys
mkdir /sys/rw /sys/root
if [ -n "$PROGRAM_FOLDER" ]; then mkdir /sys/program; mount --rbind "$PROGRAM_FOLDER" /sys/program; fi
if [ -n "$DISK_MB" ]; then mount -t tmpfs -o "mode=755,size=\${DISK_MB}m" polar /sys/rw; else mount --bind rw /sys/rw; fi
n=0
while [ "$n" -lt "$LAYERS" ]; do
  mkdir "/sys/l$n"
  if [ "$n" -ge "$MAPPED" ]; then mount --rbind "$(eval "printf %s \\"\\$LAYER_$n\\"")" "/sys/l$n"; fi
  n=$((n+1))
done
if [ "$MAPPED" -gt 0 ]; then perl -e "$MAP_LAYERS"; fi
cd /sys/rw
mkdir -p upper work shm
chmod 1777 shm upper
if [ -n "$SEED" ] && [ -d "/sys/l0$WORKDIR" ] && [ ! -L "/sys/l0$WORKDIR" ]; then
  mkdir -p "upper$(dirname "$WORKDIR")"; cp -a --reflink=auto "/sys/l0$WORKDIR" "upper$WORKDIR"
fi
mkdir -p upper/proc upper/dev upper/tmp upper/var/tmp
chmod 1777 upper/tmp upper/var/tmp
mkdir -p "upper$WORKDIR" "upper$HOME_DIR"
n=0
while [ "$n" -lt "$OWNED" ]; do
  owned=$(eval "printf %s \\"\\$OWNED_$n\\""); mkdir -p "upper$owned"
  if [ -n "$OWNER" ]; then chown -h "$OWNER" "upper$owned"; fi
  n=$((n+1))
done
if [ -n "$OWNER" ]; then chown "$OWNER" . work shm upper/tmp upper/var/tmp && chown -R -h "$OWNER" "upper$WORKDIR" "upper$HOME_DIR"; fi
if [ -n "$RESOLVE" ]; then mkdir -p upper/etc; for f in resolv.conf hosts; do cp -L "/etc/$f" "upper/etc/$f" || :; done; fi
n=0
while [ "$n" -lt "$MOUNTS" ]; do
  source=$(eval "printf %s \\"\\$SOURCE_$n\\""); target=$(eval "printf %s \\"\\$TARGET_$n\\"")
  if [ -d "$source" ]; then mkdir -p "upper$target"; else mkdir -p "upper$(dirname "$target")"; : >> "upper$target"; fi
  n=$((n+1))
done
cd /sys
lower=; for layer in l[0-9]*; do lower="$lower:$layer"; done
mount -t overlay "$NAME" -o "lowerdir=\${lower#:},upperdir=rw/upper,workdir=rw/work$OVERLAY" root
readonly_below() { while read -r _ _ _ _ point _; do case "$point" in "$1"|"$1"/*) mount -o remount,bind,ro "$point";; esac; done < /proc/self/mountinfo; }
hide() { if [ -d "$1" ]; then mount -t tmpfs -o ro,size=4k,mode=0 polar "$1"; fi; }
for folder in $FOLDERS; do mount --rbind "$folder" "root$folder"; readonly_below "/sys/root$folder"; done
n=0
while [ "$n" -lt "$MOUNTS" ]; do
  source=$(eval "printf %s \\"\\$SOURCE_$n\\""); target=$(eval "printf %s \\"\\$TARGET_$n\\"")
  mount --rbind "$source" "root$target"
  [ "$(eval "printf %s \\"\\$READONLY_$n\\"")" = 0 ] || readonly_below "/sys/root$target"
  case "$HIDDEN/" in "\${source%/}"/*) hide "root$target\${HIDDEN#"\${source%/}"}";; esac
  n=$((n+1))
done
hide "root$HIDDEN"
exec "$@"
`

/**
 * Second half, as root of the user namespace and nothing else: becomes the sandbox. A second user namespace,
 * whose only user is the one commands run as, is held by a process outside of the sandbox's sight; it takes the only
 * place there is, so that nobody inside can make another and with it reach more of the kernel. `QUOTAS` limits what the
 * kernel counts per user for all of this namespace; the resource limits of `QUOTA_LEAD` become those of the inner one.
 */
export const ASSEMBLE = `set -eu
cd /sys
echo "$USER_NAMESPACES" > /proc/sys/user/max_user_namespaces
for quota in $QUOTAS; do
  if [ -e "/proc/sys/user/\${quota%=*}" ]; then echo "\${quota#*=}" > "/proc/sys/user/\${quota%=*}"; fi
done
$QUOTA_LEAD unshare --user --map-user=${INSIDE_ID} --map-group=${INSIDE_ID} -- setpriv --pdeathsig KILL /bin/sh -c 'echo "users $$"; exec sleep infinity >/dev/null 2>&1' &
exec "$@"
`
