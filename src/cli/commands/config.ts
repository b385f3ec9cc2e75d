import { toJsonSchema } from '../../config/list-fields.ts'
import { printConfig, toJsonConfig } from '../../config/print-config.ts'
import { actionError, defineCommand, EXIT, toggle, usageError, type ExitCode } from '../command.ts'
import { loadFromFlags, DATA_FLAGS } from '../input/config-flags.ts'
import { print, printJson } from '../views/print.ts'

export const command = defineCommand({
  name: 'config',
  description: 'Print the effective settings with their origins, or check them. Secrets are never printed.',
  words: { name: 'print | check | schema', description: 'Action; schema prints a JSON Schema for editors' },
  flags: {
    ...DATA_FLAGS,
    origins: toggle('print: add the origin of each value'),
    json: toggle('print: print JSON'),
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
        print(`${file === undefined ? 'No polar.yaml, all defaults' : file}: valid\n`)
        return EXIT.done
      }
      case 'print': {
        const loaded = await loadFromFlags(flags)
        if (flags.json) printJson(toJsonConfig(loaded))
        else print(printConfig(loaded, { withOrigins: flags.origins }))
        return EXIT.done
      }
      case undefined:
      default:
        throw actionError('config', action, 'print, check or schema')
    }
  },
})
