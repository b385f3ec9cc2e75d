import { expect, test } from 'vitest'
import { narrowProfile } from './seccomp.ts'

test('narrowProfile() removes the calls that create namespaces and keeps the rest', () => {
  const { syscalls, ...rest } = narrowProfile({
    defaultAction: 'SCMP_ACT_ERRNO',
    syscalls: [
      { names: ['read', 'clone', 'clone3', 'unshare', 'mount'], action: 'SCMP_ACT_ALLOW' },
      { names: ['setns'], action: 'SCMP_ACT_ALLOW', includes: { caps: ['CAP_SYS_ADMIN'] } },
      { names: ['bpf', 'setns'], action: 'SCMP_ACT_ERRNO', errnoRet: 1 },
    ],
  })
  const sockets = syscalls.splice(4)
  expect(rest).toEqual({ defaultAction: 'SCMP_ACT_ERRNO' })
  expect(syscalls).toEqual([
    { names: ['read'], action: 'SCMP_ACT_ALLOW' },
    { names: ['bpf', 'setns'], action: 'SCMP_ACT_ERRNO', errnoRet: 1 },
    {
      names: ['clone'],
      action: 'SCMP_ACT_ALLOW',
      args: [{ index: 0, value: 0x7e020000, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }],
    },
    { names: ['clone3'], action: 'SCMP_ACT_ERRNO', errnoRet: 38, errno: 'ENOSYS' },
  ])
  expect(sockets.every(({ names }) => names.includes('socket'))).toBe(true)
})

test('narrowProfile() allows the listed socket families, whatever the profile allows or rejects', () => {
  const { syscalls } = narrowProfile({
    syscalls: [
      { names: ['socket'], action: 'SCMP_ACT_ALLOW', args: [{ index: 2, value: 9, valueTwo: 0, op: 'SCMP_CMP_NE' }] },
      { names: ['socket'], action: 'SCMP_ACT_ERRNO', errnoRet: 22 },
      { names: ['socketcall', 'socketpair', 'read'], action: 'SCMP_ACT_ALLOW', args: null },
    ],
  })
  expect(syscalls[0]).toEqual({ names: ['read'], action: 'SCMP_ACT_ALLOW', args: null })
  const rules = syscalls.filter(({ names }) => names.some((name) => name.startsWith('socket')))
  const allowed = rules.map(({ names, action, args }) => {
    expect(names).toEqual(['socket', 'socketpair'])
    expect(action).toBe('SCMP_ACT_ALLOW')
    return (args as { index: number; value: number; op: string }[]).map(({ index, value, op }) => [index, value, op])
  })
  expect(allowed).toEqual([
    [[0, 1, 'SCMP_CMP_EQ']],
    ...[0, 1, 6, 17].map((protocol) => [
      [0, 2, 'SCMP_CMP_EQ'],
      [2, protocol, 'SCMP_CMP_EQ'],
    ]),
    ...[0, 6, 17, 58].map((protocol) => [
      [0, 10, 'SCMP_CMP_EQ'],
      [2, protocol, 'SCMP_CMP_EQ'],
    ]),
    [
      [0, 16, 'SCMP_CMP_EQ'],
      [2, 0, 'SCMP_CMP_EQ'],
    ],
  ])
})
