import * as z from 'zod'
import { defineHarness, type Harness } from '../../../src/index.ts'

const LoggingSettings = z.strictObject({ script: z.string().describe('For sh -c') })

/** Runs a script and stores its logs from below HOME. */
export const harness = defineHarness<typeof LoggingSettings.shape, Harness>({
  name: 'logging',
  title: 'Logging',
  command: '/bin/sh',
  hasSubAgents: false,
  instruction: 'file',
  mcpTransports: [],
  logFolders: ['logs', 'linked'],
  settings: LoggingSettings,
  configure: ({ baseUrl, key }, { script }) => ({
    files: {},
    env: { OPENAI_BASE_URL: `${baseUrl}/v1`, OPENAI_API_KEY: key },
    args: ['-c', script],
  }),
  exitCodes: {},
})
