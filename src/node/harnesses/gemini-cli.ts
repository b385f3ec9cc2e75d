import { toJsonFile, type Harness } from './harness.ts'

/** Takes away a tool that runs on the provider's side; engines have none. */
const POLICY = `[[rule]]
toolName = "google_web_search"
decision = "deny"
priority = 900
`

export const geminiCli: Harness = {
  name: 'gemini_cli',
  title: 'Gemini CLI',
  npm: { package: '@google/gemini-cli', version: '0.61.0' },
  command: 'gemini',
  program: () => ({ kind: 'node', paths: ['node_modules/@google/gemini-cli/bundle/gemini.js'] }),
  minimumNode: '20.0.0',
  dialect: 'google-generate',
  hasSubAgents: true,
  configure({ baseUrl, key, model }) {
    const settings = {
      // By environment variables alone it chooses a way to log in that it then refuses (exit code 41).
      security: { auth: { selectedType: 'gemini-api-key' } },
      privacy: { usageStatisticsEnabled: false },
      telemetry: { enabled: false },
      general: { enableAutoUpdate: false, enableAutoUpdateNotification: false },
    }
    return {
      files: { '.gemini/settings.json': toJsonFile(settings), '.gemini/policies/polar.toml': POLICY },
      env: { GEMINI_API_KEY: key, GOOGLE_GEMINI_BASE_URL: baseUrl, GEMINI_TELEMETRY_ENABLED: 'false' },
      // Without a model it asks another one which to take.
      args: ['--model', model, '--yolo', '--skip-trust'],
    }
  },
  exitCodes: {
    1: 'gave-up',
    41: 'bad-setup',
    42: 'bad-setup',
    44: 'bad-setup',
    52: 'bad-setup',
    53: 'limit-reached',
    55: 'bad-setup',
    130: 'interrupted',
  },
}
