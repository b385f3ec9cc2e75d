import { expect, test } from 'vitest'
import { cgroupFoldersOf } from './cgroup-tracker.ts'

const path = '/docker/abc'

test('cgroupFoldersOf() finds the groups of a container, of either version or both', () => {
  const v1 = ['cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0', 'cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0']
  const v2 = 'cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0'
  expect(cgroupFoldersOf(`8:pids:${path}\n1:cpu,cpuacct:${path}\n`, v1.join('\n'))).toEqual({
    pids: { version: 1, folder: '/sys/fs/cgroup/pids/docker/abc' },
    cpu: { version: 1, folder: '/sys/fs/cgroup/cpu/docker/abc' },
    cpuacct: { version: 1, folder: '/sys/fs/cgroup/cpu/docker/abc' },
  })
  expect(cgroupFoldersOf(`0::${path}\n`, v2).pids).toEqual({ version: 2, folder: '/sys/fs/cgroup/unified/docker/abc' })
  const both = cgroupFoldersOf(`8:pids:${path}\n0::${path}\n`, [...v1, v2].join('\n'))
  expect(both.pids?.version).toBe(1)
  expect(both.memory?.version).toBe(2)
  expect(cgroupFoldersOf('', '')).toEqual({})
})
