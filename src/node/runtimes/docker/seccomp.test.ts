import { expect, test } from 'vitest'
import { refuseNamespaces } from './seccomp.ts'

test('refuseNamespaces() takes away what makes namespaces and keeps the rest', () => {
  const { syscalls, ...rest } = refuseNamespaces({
    defaultAction: 'SCMP_ACT_ERRNO',
    syscalls: [
      { names: ['read', 'clone', 'clone3', 'unshare', 'mount'], action: 'SCMP_ACT_ALLOW' },
      { names: ['setns'], action: 'SCMP_ACT_ALLOW', includes: { caps: ['CAP_SYS_ADMIN'] } },
      { names: ['bpf', 'setns'], action: 'SCMP_ACT_ERRNO', errnoRet: 1 },
    ],
  })
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
})
