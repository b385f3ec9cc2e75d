import { answerTokens, PROVIDER, toJsonFile, type Harness } from './harness.ts'

export const pi: Harness = {
  name: 'pi',
  title: 'pi',
  npm: { package: '@earendil-works/pi-coding-agent', version: '0.87.1' },
  command: 'pi',
  program: () => ({ kind: 'node', paths: ['node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js'] }),
  minimumNode: '22.19.0',
  dialect: 'openai-chat',
  hasSubAgents: false,
  configure({ baseUrl, key, model, contextTokens, images }) {
    const provider = {
      baseUrl: `${baseUrl}/v1`,
      api: 'openai-completions',
      apiKey: key,
      models: [
        {
          id: model,
          name: model,
          reasoning: true,
          input: images ? ['text', 'image'] : ['text'],
          contextWindow: contextTokens,
          maxTokens: answerTokens(contextTokens),
          cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
        },
      ],
    }
    return {
      files: { '.pi/agent/models.json': toJsonFile({ providers: { [PROVIDER]: provider } }) },
      env: { PI_OFFLINE: '1', PI_TELEMETRY: '0', PI_SKIP_VERSION_CHECK: '1' },
      args: ['--provider', PROVIDER, '--model', model, '--print'],
    }
  },
  // A context that overflows half way also ends with 0, and an empty answer.
  exitCodes: { 1: 'gave-up' },
}
