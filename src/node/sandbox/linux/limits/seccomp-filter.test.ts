import { expect, test } from 'vitest'
import { buildSeccompFilter } from './seccomp-filter.ts'

const ALLOW = 0x7fff_0000
const EPERM = 0x0005_0001
const ENOSYS = 0x0005_0026
const EAFNOSUPPORT = 0x0005_0061
const EPROTONOSUPPORT = 0x0005_005d

/** Interprets the instructions that our filters use. */
function decide(program: Buffer, call: { number: number; machine: number; argument?: number; third?: number }): number {
  let loaded = Number.NaN
  for (let at = 0; at < program.length / 8; at += 1) {
    const [code, isSo, isNot] = [program.readUInt16LE(at * 8), program[at * 8 + 2]!, program[at * 8 + 3]!]
    const value = program.readUInt32LE(at * 8 + 4)
    if (code === 0x20) loaded = { 0: call.number, 4: call.machine, 16: call.argument ?? 0, 32: call.third ?? 0 }[value]!
    else if (code === 0x15) at += loaded === value ? isSo : isNot
    else if (code === 0x35) at += loaded >= value ? isSo : isNot
    else if (code === 0x45) at += (loaded & value) === 0 ? isNot : isSo
    else if (code === 0x06) return value
    else throw new Error(`unknown instruction ${code}`)
  }
  throw new Error('the program has no end')
}

test.each([
  ['x64', 0xc000_003e, { keyctl: 250, mount: 165, bpf: 321, openat: 257, clone3: 435, write: 1, iopl: 172 }],
  ['arm64', 0xc000_00b7, { keyctl: 219, mount: 40, bpf: 280, openat: 56, clone3: 435, write: 64, iopl: 172 }],
] as const)('on %s keys, mounts and the like are refused, and what programs need is not', (name, machine, numbers) => {
  const strict = buildSeccompFilter(name, { mayMount: false })
  const nested = buildSeccompFilter(name, { mayMount: true })
  const on = (program: Buffer, number: number) => decide(program, { number, machine })
  for (const number of [numbers.keyctl, numbers.bpf]) {
    expect(on(strict, number)).toBe(EPERM)
    expect(on(nested, number)).toBe(EPERM)
  }
  expect(on(strict, numbers.mount)).toBe(EPERM)
  expect(on(nested, numbers.mount)).toBe(ALLOW)
  for (const number of [numbers.openat, numbers.write]) expect(on(strict, number)).toBe(ALLOW)
  // On arm64 that number is getpid.
  expect(on(strict, numbers.iopl)).toBe(name === 'x64' ? EPERM : ALLOW)
})

test.each([
  ['x64', 0xc000_003e, 56],
  ['arm64', 0xc000_00b7, 220],
] as const)('on %s nobody makes a child of its parent, but for containers in a sandbox', (name, machine, clone) => {
  const strict = buildSeccompFilter(name, { mayMount: false })
  const nested = buildSeccompFilter(name, { mayMount: true })
  for (const [number, argument, expected] of [
    [clone, 17, ALLOW],
    [clone, 0x8000 | 17, EPERM],
    [435, 0, ENOSYS],
  ] as const) {
    expect(decide(strict, { number, machine, argument })).toBe(expected)
    expect(decide(nested, { number, machine, argument })).toBe(ALLOW)
  }
})

test('all calls of another architecture are rejected', () => {
  const program = buildSeccompFilter('x64', { mayMount: false })
  expect(decide(program, { number: 4, machine: 0x4000_0003 })).toBe(EPERM)
  expect(decide(program, { number: 0x4000_0001, machine: 0xc000_003e })).toBe(EPERM)
})

const MACHINES = [
  ['x64', 0xc000_003e, { socket: 41, socketpair: 53, io_setup: 206 }],
  ['arm64', 0xc000_00b7, { socket: 198, socketpair: 199, io_setup: 0 }],
] as const

test.each(MACHINES)('on %s only the listed families of sockets can be opened', (name, machine, numbers) => {
  const strict = buildSeccompFilter(name, { mayMount: false })
  const allowed = [1, 2, 10, 16]
  for (const number of [numbers.socket, numbers.socketpair]) {
    for (let family = 0; family < 64; family += 1) {
      const expected = allowed.includes(family) ? ALLOW : EAFNOSUPPORT
      expect(decide(strict, { number, machine, argument: family }), `family ${family}`).toBe(expected)
    }
  }
})

test.each(MACHINES)('on %s only the listed protocols of a family can be used', (name, machine, { socket: number }) => {
  const strict = buildSeccompFilter(name, { mayMount: false })
  const nested = buildSeccompFilter(name, { mayMount: true })
  for (const [family, allowed] of [
    [2, [0, 1, 6, 17]],
    [10, [0, 6, 17, 58]],
    [16, [0]],
  ] as const) {
    for (let third = 0; third < 300; third += 1) {
      const expected = (allowed as readonly number[]).includes(third) ? ALLOW : EPROTONOSUPPORT
      expect(decide(strict, { number, machine, argument: family, third }), `${family} ${third}`).toBe(expected)
      // Containers in a sandbox use further protocols of netlink.
      const inNested = family === 16 ? ALLOW : expected
      expect(decide(nested, { number, machine, argument: family, third }), `${family} ${third}`).toBe(inNested)
    }
  }
})

test.each(MACHINES)(
  'on %s there is no asynchronous I/O context, which all of the machine share',
  (name, machine, numbers) => {
    for (const mayMount of [true, false])
      expect(decide(buildSeccompFilter(name, { mayMount }), { number: numbers.io_setup, machine })).toBe(ENOSYS)
  },
)
