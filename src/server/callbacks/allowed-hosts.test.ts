import { describe, expect, test } from 'vitest'
import { createAllowedHosts } from './allowed-hosts.ts'

const loopback = createAllowedHosts(['loopback'])
const lab = createAllowedHosts(['trainer.lab', 'hooks.lab:8443', '*.example.com', '10.1.2.3', '10.9.0.0/16'])

describe('with the default list (loopback)', () => {
  test.each([
    'http://127.0.0.1:9000/done',
    'http://localhost/done',
    'http://LOCALHOST:1/',
    'http://localhost./',
    'http://app.localhost:3000/',
    'https://[::1]:9000/',
    // Other notations of the same address.
    'http://127.1/',
    'http://2130706433/',
    'http://0x7f000001/',
    'http://0177.0.0.1/',
    'http://[::ffff:127.0.0.1]/',
    'http://[0:0:0:0:0:0:0:1]/',
    'http://127.0.0.1./',
  ])('%s is allowed', (url) => {
    expect(loopback.refuseUrl(url)).toBeUndefined()
  })

  test.each([
    'http://169.254.169.254/latest/meta-data/',
    'http://2852039166/',
    'http://0xa9fea9fe/',
    'http://0251.0376.0251.0376/',
    'http://[::ffff:169.254.169.254]/',
    'http://[::ffff:a9fe:a9fe]/',
    'http://[64:ff9b::a9fe:a9fe]/',
    'http://[64:ff9b::7f00:2]:1@evil/',
    'http://[fd00:ec2::254]/',
    'http://metadata.google.internal/',
    'http://0.0.0.0:9000/',
    'http://0/',
    'http://[::]:9000/',
    'http://[::ffff:0.0.0.0]/',
    'http://[::7f00:1]/',
    'http://10.0.0.1/',
    'http://192.168.1.1/',
    'http://172.16.0.1/',
    'http://100.64.0.1/',
    'http://[fe80::1]/',
    'http://[fc00::1]/',
    'http://[ff02::1]/',
    'http://224.0.0.1/',
    'http://255.255.255.255/',
    'http://1.1.1.1/',
    'http://example.com/',
    // The part before the @ is a user.
    'http://localhost@evil.example/',
    'http://127.0.0.1@evil.example/',
    'http://localhost:80@evil.example/',
    'http://user:pass@localhost/',
    'http://localhost.evil.example/',
    'http://127.0.0.1.evil.example/',
    'http://evillocalhost/',
    'http://evil.example#@localhost/',
    'http://evil.example\\@localhost/',
    'http://localhost%2eevil.example/',
    'http://①②⑦.0.0.2.evil/',
    'file:///etc/passwd',
    'ftp://localhost/',
    'gopher://localhost:6379/_x',
    'data:text/plain,x',
    'javascript:0',
    '//localhost/',
    'localhost:9000',
    'http://',
    '',
    'http://local host/',
  ])('%s is refused', (url) => {
    expect(loopback.refuseUrl(url)).toEqual(expect.any(String))
  })

  test('full-width digits are normalised to an address', () => {
    expect(loopback.refuseUrl('http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/')).toMatch(/169\.254\.169\.254/)
    expect(loopback.refuseUrl('http://①②⑦.⓪.⓪.①/')).toBeUndefined()
  })
})

describe('with a list', () => {
  test.each([
    'http://trainer.lab/',
    'http://trainer.lab:1234/x?y=z',
    'https://TRAINER.lab./',
    'https://hooks.lab:8443/',
    'https://a.example.com/',
    'https://a.b.example.com:444/',
    'http://10.1.2.3:5000/',
    'http://[::ffff:10.1.2.3]/',
    'http://10.9.255.1/',
  ])('%s is allowed', (url) => {
    expect(lab.refuseUrl(url)).toBeUndefined()
  })

  test.each([
    'http://hooks.lab/',
    'https://hooks.lab/',
    'https://hooks.lab:8444/',
    'http://example.com/',
    'http://badexample.com/',
    'http://a.example.com.evil/',
    'http://trainer.lab.evil/',
    'http://x.trainer.lab/',
    'http://10.1.2.4/',
    'http://10.10.0.1/',
    'http://127.0.0.1/',
    'http://localhost/',
  ])('%s is refused', (url) => {
    expect(lab.refuseUrl(url)).toEqual(expect.any(String))
  })
})

describe('resolved addresses', () => {
  const rows: [string, string[], boolean][] = [
    ['trainer.lab', ['93.184.216.34'], true],
    ['trainer.lab', ['10.0.0.5'], true],
    ['trainer.lab', ['fd12:3456::1'], true],
    ['trainer.lab', ['10.0.0.5', '169.254.169.254'], false],
    ['trainer.lab', ['169.254.169.254'], false],
    ['trainer.lab', ['fd00:ec2::254'], false],
    ['trainer.lab', ['100.100.100.200'], false],
    ['trainer.lab', ['127.0.0.1'], false],
    ['trainer.lab', ['::1'], false],
    ['trainer.lab', ['0.0.0.0'], false],
    ['trainer.lab', ['::'], false],
    ['trainer.lab', ['224.0.0.1'], false],
    ['trainer.lab', ['fe80::1'], false],
    ['trainer.lab', ['::ffff:169.254.169.254'], false],
    ['trainer.lab', ['64:ff9b::a9fe:a9fe'], false],
    ['trainer.lab', ['2002:a9fe:a9fe::1'], false],
    ['trainer.lab', ['not an address'], false],
    ['trainer.lab', [], false],
    ['a.example.com', ['93.184.216.34'], true],
    ['a.example.com', ['2606:4700::1111'], true],
    // An owner of a name in the zone could make it resolve to a private address.
    ['a.example.com', ['10.0.0.5'], false],
    ['a.example.com', ['93.184.216.34', '192.168.0.1'], false],
    ['a.example.com', ['10.9.1.1'], true],
    ['other.org', ['93.184.216.34'], false],
  ]
  test.each(rows)('%s at %j: %s', (host, addresses, isAllowed) => {
    expect(lab.refuseAddresses(host, addresses) === undefined).toBe(isAllowed)
  })

  test('localhost must resolve to a loopback address', () => {
    expect(loopback.refuseAddresses('localhost', ['127.0.0.1', '::1'])).toBeUndefined()
    expect(loopback.refuseAddresses('localhost', ['93.184.216.34'])).toMatch(/resolves to 93/)
    expect(loopback.refuseAddresses('app.localhost', ['10.0.0.1'])).toMatch(/resolves to 10/)
  })
})

test.each([
  '',
  'http://host',
  'host/path',
  '*',
  '*.',
  'a.*.b',
  '10.0.0.0/33',
  '::/129',
  'x/8',
  'a b',
  'user@host',
  '10.0.0.0/',
])('%j is not a valid entry', (entry) => {
  expect(() => createAllowedHosts([entry])).toThrow(/is not a valid entry of callback hosts/)
})

test('list entries accept every notation of an address', () => {
  expect(createAllowedHosts(['[fd12::1]:8000']).refuseUrl('http://[fd12:0:0::1]:8000/')).toBeUndefined()
  expect(createAllowedHosts(['fd12::1']).refuseUrl('http://[fd12::1]:1/')).toBeUndefined()
  expect(createAllowedHosts(['169.254.1.1']).refuseUrl('http://169.254.1.1/')).toBeUndefined()
  expect(createAllowedHosts(['0.0.0.0']).refuseUrl('http://0.0.0.0/')).toBeDefined()
  expect(createAllowedHosts(['0.0.0.0/0', '::/0']).refuseUrl('http://169.254.169.254/')).toBeDefined()
})
