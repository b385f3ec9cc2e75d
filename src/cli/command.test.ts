import { describe, expect, test } from 'vitest'
import { defineCommand, EXIT, type Command } from './command.ts'

function recorder(): { command: Command; seen: () => unknown } {
  let seen: unknown
  const command = defineCommand({
    name: 'try',
    description: 'Test command.',
    subject: { name: 'what', description: 'x', default: 'last' },
    flags: {
      out: { type: 'string', hint: 'DIR', default: 'here', formerly: 'place', description: 'x' },
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
  test('passes flags to run(), and the arguments after -- unparsed', async () => {
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

  test('passes any number of positional arguments to a command with `words`', async () => {
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

  test.each([[['--place', 'there']], [['--place=there']]])('accepts the former spelling %j', async (argv) => {
    const { command, seen } = recorder()
    await command.execute([...argv, '--', '--place', 'x'])
    expect(seen()).toMatchObject({ out: 'there', rest: ['--place', 'x'] })
  })

  test.each([
    [['--outt', 'x'], "Unknown option '--outt'"],
    [['a', 'b'], 'unexpected argument "b"'],
    [['--out'], 'argument missing'],
    [['--kind', 'c'], '--kind must be one of a, b, not "c"'],
  ])('rejects %j and names the help', async (argv, words) => {
    const { command } = recorder()
    await expect(command.execute(argv)).rejects.toMatchObject({ code: 'config.invalid' })
    await expect(command.execute(argv)).rejects.toThrow(words)
    await expect(command.execute(argv)).rejects.toThrow('polar try --help')
  })
})
