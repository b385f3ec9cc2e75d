import { randomUUID } from 'node:crypto'
import { readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import { SOCKET_FAMILIES } from '../../linux/limits/seccomp-filter.ts'

/** Paths of Podman's default profile; the administrator's before the distribution's. */
const PLACES = ['/etc/containers/seccomp.json', '/usr/share/containers/seccomp.json']

/**
 * Docker rejects these calls for a container without capabilities; Podman leaves the decision to the kernel. The kernel
 * grants all capabilities inside a new user namespace, and with them access to all code that they protect: mounts,
 * packet filters.
 */
const REFUSED = new Set(
  (
    'unshare setns clone clone3 mount umount umount2 pivot_root mount_setattr move_mount open_tree ' +
    'fsopen fsconfig fsmount fspick keyctl add_key request_key io_setup'
  ).split(' '),
)
/** `socketcall` is `socket` of 32-bit programs, with arguments in memory, which no filter can read. */
const SOCKETS = new Set(['socket', 'socketpair', 'socketcall'])
/** Every CLONE_NEW flag. */
const NAMESPACES = 0x7e020000
const ENOSYS = 38

const Profile = z.looseObject({ syscalls: z.array(z.looseObject({ names: z.array(z.string()), action: z.string() })) })
type Profile = z.infer<typeof Profile>

/** Writes Podman's own profile without these calls to a file; undefined if Podman has no profile. */
export async function writePodmanProfile(dir: string): Promise<string | undefined> {
  for (const place of PLACES) {
    const text = await readFile(place, 'utf8').catch(() => undefined)
    if (text === undefined) continue
    const path = join(dir, 'seccomp.json')
    const draft = `${path}.${randomUUID()}`
    await writeFile(draft, JSON.stringify(narrowProfile(Profile.parse(JSON.parse(text)))), { mode: 0o644 })
    await rename(draft, path)
    return path
  }
  return undefined
}

/** Returns the profile without calls that create namespaces, and with the sockets of `SOCKET_FAMILIES` only. */
export function narrowProfile(profile: Profile): Profile {
  const syscalls = profile.syscalls.map((rule) => {
    const names = rule.names.filter((name) => !SOCKETS.has(name))
    if (rule.action !== 'SCMP_ACT_ALLOW') return { ...rule, names }
    return { ...rule, names: names.filter((name) => !REFUSED.has(name)) }
  })
  const plainClone = { index: 0, value: NAMESPACES, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }
  return {
    ...profile,
    syscalls: [
      ...syscalls.filter(({ names }) => names.length > 0),
      { names: ['clone'], action: 'SCMP_ACT_ALLOW', args: [plainClone] },
      // A filter cannot read its flags; if the call is reported as unknown, libraries use clone.
      { names: ['clone3'], action: 'SCMP_ACT_ERRNO', errnoRet: ENOSYS, errno: 'ENOSYS' },
      ...socketRules(),
    ],
  }
}

/** One rule for each protocol of each family: Podman allows a call that any rule allows. */
function socketRules(): Profile['syscalls'] {
  const isEqual = (index: number, value: number) => ({ index, value, valueTwo: 0, op: 'SCMP_CMP_EQ' })
  return SOCKET_FAMILIES.flatMap(({ family, protocols }) => {
    const args = protocols?.map((protocol) => [isEqual(0, family), isEqual(2, protocol)]) ?? [[isEqual(0, family)]]
    return args.map((each) => ({ names: ['socket', 'socketpair'], action: 'SCMP_ACT_ALLOW', args: each }))
  })
}
