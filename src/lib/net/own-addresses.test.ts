import { hostname, networkInterfaces } from 'node:os'
import { describe, expect, test } from 'vitest'
import { OwnAddresses } from './own-addresses.ts'

const own = new OwnAddresses()
own.add('http://127.0.0.1:8080')
own.add('https://polar.lab/')
own.add('http://10.1.2.3:9000')

const interfaces = Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address))

describe('a URL', () => {
  test.each([
    'http://127.0.0.1:8080/tasks',
    'https://127.0.0.1:8080/',
    'http://localhost:8080/',
    'http://LOCALHOST.:8080/',
    'http://a.localhost:8080/',
    `http://${hostname()}:8080/`,
    'http://[::1]:8080/',
    'http://[0:0:0:0:0:0:0:1]:8080/',
    'http://[::ffff:127.0.0.1]:8080/',
    'http://[::ffff:7f00:1]:8080/',
    'http://[64:ff9b::7f00:1]:8080/',
    'http://127.1:8080/',
    'http://127.9.9.9:8080/',
    'http://2130706433:8080/',
    'http://0x7f000001:8080/',
    'http://0177.0.0.1:8080/',
    'http://①②⑦.⓪.⓪.①:8080/',
    'http://0.0.0.0:8080/',
    'http://0:8080/',
    'http://[::]:8080/',
    'http://[::ffff:0:0]:8080/',
    'https://polar.lab/x',
    'https://POLAR.lab.:443/x',
    'http://polar.lab:443/x',
    'http://10.1.2.3:9000/',
    'http://167838211:9000/',
    ...interfaces.flatMap((address) =>
      address.includes('%') ? [] : [`http://${address.includes(':') ? `[${address}]` : address}:8080/`],
    ),
  ])('%s leads to Polar itself', (url) => {
    expect(own.hasUrl(new URL(url))).toBe(true)
  })

  test.each([
    'http://127.0.0.1:8081/',
    'http://localhost/',
    'http://trainer.lab:8080/',
    'http://10.1.2.3:8080/',
    'http://10.1.2.4:9000/',
    'http://polar.lab/',
    'https://polar.lab:8080/',
    'https://polar.lab.evil/',
  ])('%s does not', (url) => {
    expect(own.hasUrl(new URL(url))).toBe(false)
  })
})

test('has() compares address and port of a connection', () => {
  for (const address of ['127.0.0.1', '127.0.0.2', '::1', '::ffff:127.0.0.1', '0.0.0.0', '::', ...interfaces])
    expect(own.has(address.replace(/%.*$/, ''), 8080), address).toBe(true)
  expect(own.has('::ffff:10.1.2.3', 9000)).toBe(true)
  expect(own.has('127.0.0.1', 8081)).toBe(false)
  expect(own.has('192.0.2.1', 8080)).toBe(false)
})
