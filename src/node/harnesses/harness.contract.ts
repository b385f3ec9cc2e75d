import { describe, expect, test } from 'vitest'
import { dialects } from '../../gateway/dialects/index.ts'
import { endOf, type Harness, type HarnessSetup } from './harness.ts'

export const exampleSetup: HarnessSetup = {
  baseUrl: 'http://127.0.0.1:4000/s/ses_1',
  key: 'sk-polar-secret',
  model: 'Qwen/Qwen3-8B',
  contextTokens: 131_072,
  images: true,
}

/** What holds for every harness preset, whatever the CLI. */
export function describeHarness(harness: Harness): void {
  describe(`${harness.name}, as any harness`, () => {
    test('has a name for the command line and an exact version', () => {
      expect(harness.name).toMatch(/^[a-z]+(_[a-z]+)*$/)
      expect(harness.npm.version).toMatch(/^\d+\.\d+\.\d+$/)
      expect(harness.npm.package).toMatch(/^(@[\w-]+\/)?[\w-]+$/)
    })

    test.each(['linux-x64', 'linux-arm64', 'darwin-arm64'])(
      'knows its program on %s, inside its folder',
      (platform) => {
        const { kind, paths } = harness.program(platform)
        for (const path of paths) {
          expect(path).toMatch(/^node_modules\/[\w@]/)
          expect(path).not.toContain('..')
          if (kind === 'native') expect(path).toContain(platform)
        }
        expect(harness.minimumNode === undefined).toBe(kind === 'native')
      },
    )

    test('speaks an API of the gateway', () => {
      expect(dialects.map(({ id }) => id)).toContain(harness.dialect)
    })

    test('finds the gateway and the key in its files or variables, and nothing secret on its command line', () => {
      const { files, env, args } = harness.configure(exampleSetup)
      const given = JSON.stringify([Object.values(files), Object.values(env)])
      expect(given).toContain(exampleSetup.baseUrl)
      expect(given).toContain(exampleSetup.key)
      expect(given.concat(args.join(' '))).toContain(exampleSetup.model)
      expect(args.join(' ')).not.toContain(exampleSetup.key)
      expect(args.join(' ')).not.toContain(exampleSetup.baseUrl)
    })

    test('writes below its HOME only, and leaves HOME and PATH to the caller', () => {
      const { files, env } = harness.configure(exampleSetup)
      for (const path of Object.keys(files)) expect(path).toMatch(/^\.[\w.-]+(\/[\w.-]+)*$/)
      for (const path of Object.keys(files)) expect(path.split('/')).not.toContain('..')
      expect(Object.keys(env)).not.toEqual(expect.arrayContaining(['HOME']))
      expect(Object.keys(env)).not.toEqual(expect.arrayContaining(['PATH']))
    })

    test('writes files that can be read whatever the model is called', () => {
      const model = 'a/"b"\\c\n名前'
      const { files } = harness.configure({ ...exampleSetup, model })
      for (const [path, text] of Object.entries(files)) {
        if (path.endsWith('.json')) expect(() => JSON.parse(text) as unknown).not.toThrow()
        expect(text).not.toContain('\n名前')
      }
    })

    test('is told the same by the same', () => {
      expect(harness.configure(exampleSetup)).toEqual(harness.configure({ ...exampleSetup }))
    })

    test('says how a run ended', () => {
      expect(endOf(harness, 0)).toBe('finished')
      expect(endOf(harness, 1)).toBe('gave-up')
      expect(endOf(harness, 99)).toBe('gave-up')
      expect(endOf(harness, 143)).toBe('interrupted')
    })
  })
}
