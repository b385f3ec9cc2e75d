import { answerTokens, KEY_VARIABLE, PROVIDER, toJsonFile, type Harness } from './harness.ts'

export const opencode: Harness = {
  name: 'opencode',
  title: 'OpenCode',
  npm: { package: 'opencode-ai', version: '1.18.33' },
  command: 'opencode',
  program: (platform) => ({
    kind: 'native',
    paths: [`node_modules/opencode-${platform}/bin/opencode`, `node_modules/opencode-${platform}-musl/bin/opencode`],
  }),
  dialect: 'openai-chat',
  hasSubAgents: true,
  configure({ baseUrl, key, model, contextTokens, images }) {
    const settings = {
      autoupdate: false,
      share: 'disabled',
      permission: 'allow',
      model: `${PROVIDER}/${model}`,
      provider: {
        [PROVIDER]: {
          npm: '@ai-sdk/openai-compatible',
          name: PROVIDER,
          options: { baseURL: `${baseUrl}/v1`, apiKey: `{env:${KEY_VARIABLE}}` },
          models: {
            [model]: {
              name: model,
              attachment: images,
              reasoning: true,
              tool_call: true,
              modalities: { input: images ? ['text', 'image'] : ['text'], output: ['text'] },
              limit: { context: contextTokens, output: answerTokens(contextTokens) },
            },
          },
        },
      },
    }
    return {
      files: {
        '.config/opencode/opencode.json': toJsonFile(settings),
        // At every start it installs a package for plugins there in the background; npm run by the agent is elsewhere.
        '.config/opencode/.npmrc': 'offline=true\n',
      },
      env: {
        [KEY_VARIABLE]: key,
        OPENCODE_DISABLE_AUTOUPDATE: '1',
        OPENCODE_DISABLE_MODELS_FETCH: '1',
        OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
        OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
        OPENCODE_DISABLE_SHARE: '1',
      },
      // With a title given it does not ask the model for one.
      args: ['run', '--title', PROVIDER],
    }
  },
  exitCodes: { 1: 'gave-up' },
}
