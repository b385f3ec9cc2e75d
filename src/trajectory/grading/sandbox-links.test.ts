import { expect, test } from 'vitest'
import { leadsInto } from './sandbox-links.ts'

const links = new Map([
  ['/bin', 'usr/bin'],
  ['/app/out', '/tests/expected.txt'],
  ['/app/whole', '/tests'],
  ['/app/relative', '../tests/expected.txt'],
  ['/app/root', '/'],
  ['/app/through', 'root/tests/expected.txt'],
  ['/app/chain', 'through'],
  ['/app/climb', 'sub/../../tests'],
  ['/app/process', '/proc/self/root/app/x'],
  ['/app/descriptor', '/dev/fd/3'],
  ['/app/mounts', '/proc/mounts'],
  ['/app/near', '/tests-2/x'],
  ['/app/loop', 'loop'],
  ['/app/python', '/bin/python3'],
])

test('leadsInto() follows every chain of links to the folders', () => {
  const leading = [...links.keys()].filter((path) => leadsInto(path, links, ['/tests']))
  expect(leading).toEqual([
    '/app/out',
    '/app/whole',
    '/app/relative',
    '/app/root',
    '/app/through',
    '/app/chain',
    '/app/climb',
    '/app/process',
    '/app/descriptor',
  ])
})
