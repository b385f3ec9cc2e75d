import { toJsonSchema } from '../../config/list-fields.ts'
import { printConfig, toJsonConfig } from '../../config/print-config.ts'
import { defineCommand, EXIT, usageError, type ExitCode } from '../command.ts'
import { loadFromFlags, PLACE_FLAGS } from '../input/config-flags.ts'
import { print, printJson } from '../views/print.ts'

export const config = defineCommand({
  name: 'config',
  description: 'See which settings hold and where each comes from, and check them. Secrets are never printed.',
  words: { name: 'print | check | schema', description: 'What to do; schema is JSON Schema, for editors' },
  flags: {
    ...PLACE_FLAGS,
    origins: { type: 'boolean', description: 'print: say behind each value where it comes from' },
    json: { type: 'boolean', description: 'print: as JSON' },
  },
  examples: [
    'polar config print --origins',
    'polar config check --config polar.yaml',
    'polar config schema > polar.schema.json',
  ],
  async run({ flags, words: [action, ...more] }): Promise<ExitCode> {
    if (more.length > 0) throw usageError('config', `unexpected argument "${more[0]}"`)
    switch (action) {
      case 'schema':
        printJson(toJsonSchema(), 2)
        return EXIT.done
      case 'check': {
        const { file } = await loadFromFlags(flags)
        print(`${file === undefined ? 'There is no polar.yaml; all defaults' : file}: fine\n`)
        return EXIT.done
      }
      case 'print': {
        const loaded = await loadFromFlags(flags)
        if (flags.json) printJson(toJsonConfig(loaded))
        else print(printConfig(loaded, { withOrigins: flags.origins }))
        return EXIT.done
      }
      case undefined:
        throw usageError('config', 'say print, check or schema')
      default:
        throw usageError('config', `there is no "${action}"`)
    }
  },
})
