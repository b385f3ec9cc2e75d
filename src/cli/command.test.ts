import { describe, expect, test } from 'vitest'
import { defineCommand, EXIT, type Command } from './command.ts'

function recorder(): { command: Command; seen: () => unknown } {
  let seen: unknown
  const command = defineCommand({
    name: 'try',
    description: 'Test command.',
    subject: { name: 'what', description: 'x', default: 'last' },
    flags: {
      out: { type: 'string', hint: 'DIR', default: 'here', description: 'x' },
      kind: { type: 'string', hint: 'KIND', choices: ['a', 'b'], description: 'x' },
      json: { type: 'boolean', description: 'x' },
    },
    rest: 'a command',
    examples: ['polar try'],
    async run({ flags, subject, rest }) {
      seen = { subject, ...flags, rest }
      return EXIT.done
    },
  })
  return { command, seen: () => seen }
}

describe('execute()', () => {
  test('hands on flags, and what stands after -- untouched', async () => {
    const { command, seen } = recorder()
    expect(await command.execute(['thing', '--out=there', '--json', '--', 'agent', '--out', 'x', '--', '-h'])).toBe(0)
    expect(seen()).toEqual({
      subject: 'thing',
      out: 'there',
      kind: undefined,
      json: true,
      rest: ['agent', '--out', 'x', '--', '-h'],
    })
  })

  test('hands on any number of words where it takes them', async () => {
    let seen: unknown
    const command = defineCommand({
      name: 'many',
      description: 'Test command.',
      words: { name: 'thing…', description: 'x' },
      flags: { json: { type: 'boolean', description: 'x' } },
      examples: ['polar many a b'],
      async run({ flags, words }) {
        seen = { words, ...flags }
        return EXIT.done
      },
    })
    await command.execute(['a', '--json', 'b', 'c'])
    expect(seen).toEqual({ words: ['a', 'b', 'c'], json: true })
  })

  test.each([
    [['--outt', 'x'], "Unknown option '--outt'"],
    [['a', 'b'], 'unexpected argument "b"'],
    [['--out'], 'argument missing'],
    [['--kind', 'c'], '--kind must be one of a, b, not "c"'],
  ])('refuses %j and says how to get help', async (argv, words) => {
    const { command } = recorder()
    await expect(command.execute(argv)).rejects.toMatchObject({ code: 'config.invalid' })
    await expect(command.execute(argv)).rejects.toThrow(words)
    await expect(command.execute(argv)).rejects.toThrow('polar try --help')
  })
})
