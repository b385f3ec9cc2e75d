import { expect, test } from 'vitest'
import { SandboxUsers } from './sandbox-users.ts'

const readOnly = { source: '/a', target: '/a', isReadOnly: true }

test('sandboxes have different users, none of which is the shared user', () => {
  const numbers = new SandboxUsers(1_900_000)
  const users = Array.from({ length: 2000 }, () => numbers.acquire({ mounts: [readOnly] }, false))
  expect(new Set(users.map(({ uid }) => uid)).size).toBe(2000)
  for (const { uid, shared } of users) {
    expect(shared).toBe(1_900_000)
    expect(uid).toBeGreaterThanOrEqual(1_901_024)
    expect(uid).toBeLessThan(1_917_408)
  }
})

test('a sandbox that needs files of the shared user runs as that user', () => {
  const numbers = new SandboxUsers(500)
  const writable = { mounts: [readOnly, { ...readOnly, isReadOnly: false }] }
  expect(numbers.acquire({ snapshot: 's', mounts: [] }, false)).toMatchObject({ uid: 500, shared: 500 })
  expect(numbers.acquire({ snapshot: 's', mounts: [] }, true).uid).toBeGreaterThan(500)
  expect(numbers.acquire(writable, false)).toMatchObject({ uid: 500, shared: 500 })
  expect(numbers.acquire(writable, true)).toMatchObject({ uid: 500, shared: 500 })
})

test('acquire() returns a user even if all user ids are in use', () => {
  const numbers = new SandboxUsers(500)
  for (let taken = 0; taken < 16_384; taken += 1) numbers.acquire({ mounts: [] }, false)
  const one = numbers.acquire({ mounts: [] }, false)
  expect(one.uid).toBeGreaterThan(500)
  one.release()
  expect(numbers.acquire({ mounts: [] }, false).uid).toBe(one.uid)
})
