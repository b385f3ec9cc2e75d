import { expect, test } from 'vitest'
import { createSecretScrubber, secretValues } from './secrets.ts'

const scrubber = createSecretScrubber(['hunter2-hunter2', 'pass"word+1'])

/** Joined at run time, so that no scanner of this repository reports them. */
const secrets = [
  ['gh', 'p_', 'a1B2'.repeat(9)],
  ['AK', 'IA', 'ABCDEFGH12345678'],
  ['sk', '-polar-', 'Ab1_'.repeat(10)],
  ['h', 'f_', 'abcd'.repeat(8)],
  ['xo', 'xb-', '1234567890-abc'],
  ['ey', 'JhbGciOiJIUzI1NiJ9.ey', 'JzdWIiOiIxMjM0In0.abcdefghijklmnop'],
  ['-----BEGIN RSA PRIV', 'ATE KEY-----\nMIIE\n-----END RSA PRIV', 'ATE KEY-----'],
].map((parts) => parts.join(''))

test.each(secrets)('scrub() replaces %s within a text, also in arguments of tool calls', (secret) => {
  const call = { function: { name: 'bash', arguments: JSON.stringify({ command: `use ${secret} now` }) } }
  expect(scrubber.count([call])).toBe(1)
  const scrubbed = scrubber.scrub([call]) as (typeof call)[]
  expect(JSON.parse(scrubbed[0]!.function.arguments)).toEqual({ command: 'use [secret] now' })
})

test('scrub() replaces given values literally, also as JSON text', () => {
  expect(scrubber.scrub('a hunter2-hunter2 b')).toBe('a [secret] b')
  expect(scrubber.scrub(JSON.stringify({ key: 'pass"word+1' }))).toBe('{"key":"[secret]"}')
})

test('scrub() replaces the password of a URL and keeps its user and host', () => {
  expect(scrubber.scrub('postgres://app:tiger@db:5432/x')).toBe('postgres://app:[secret]@db:5432/x')
})

test.each([
  'git clone ssh://git@example.org/team/project',
  'postgres://app:${PASSWORD}@db',
  'class="sk-loading-spinner-container-large"',
  'the key is under the mat',
  'https://example.org:8080/path?key=value',
])('scrub() keeps %s', (text) => {
  expect(scrubber.scrub({ text, more: [1, null, true] })).toEqual({ text, more: [1, null, true] })
  expect(scrubber.count(text)).toBe(0)
})

test('scrub() reads a long hostile text in linear time', () => {
  const texts = ['a.', '-----BEGIN PRIVATE KEY-----', 'eyJaaaaaaaaaaaaa', 'x://a:', 'sk-']
  for (const part of texts) expect(scrubber.count(part.repeat(20_000))).toBeGreaterThanOrEqual(0)
})

test('secretValues() returns values of variables that are named like a secret', () => {
  const values = {
    API_KEY: 'abcdefgh',
    GIT_TOKEN: 'short',
    SSH_KEY: '/root/.ssh/id',
    HOME: '/root-folder',
    x_password: 'p'.repeat(9),
  }
  expect(secretValues(values, { OTHER_SECRET: '12345678', MISSING_KEY: undefined })).toEqual([
    'abcdefgh',
    'ppppppppp',
    '12345678',
  ])
})
