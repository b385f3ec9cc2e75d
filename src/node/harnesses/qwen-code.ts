import { KEY_VARIABLE, PROVIDER, toJsonFile, type Harness } from './harness.ts'

export const qwenCode: Harness = {
  name: 'qwen_code',
  title: 'Qwen Code',
  npm: { package: '@qwen-code/qwen-code', version: '0.24.4' },
  command: 'qwen',
  program: () => ({ kind: 'node', paths: ['node_modules/@qwen-code/qwen-code/cli-entry.js'] }),
  minimumNode: '22.0.0',
  dialect: 'openai-chat',
  hasSubAgents: true,
  configure({ baseUrl, key, model, contextTokens, images }) {
    const provider = {
      id: model,
      name: PROVIDER,
      envKey: KEY_VARIABLE,
      baseUrl: `${baseUrl}/v1`,
      generationConfig: {
        contextWindowSize: contextTokens,
        // By environment variables alone every image would become "This model does not support image input".
        modalities: { image: images },
      },
    }
    const settings = {
      privacy: { usageStatisticsEnabled: false },
      telemetry: { enabled: false },
      general: { enableAutoUpdate: false },
      // Memory would send calls of its own after the run, with the whole history.
      memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false, enableAutoSkill: false },
      security: { auth: { selectedType: 'openai' } },
      model: { name: model },
      modelProviders: { openai: [provider] },
    }
    return {
      files: { '.qwen/settings.json': toJsonFile(settings) },
      env: { [KEY_VARIABLE]: key, QWEN_USAGE_STATISTICS_ENABLED: '0', QWEN_CODE_SUPPRESS_YOLO_WARNING: '1' },
      args: ['--yolo'],
    }
  },
  exitCodes: {
    1: 'gave-up',
    41: 'bad-setup',
    42: 'bad-setup',
    44: 'bad-setup',
    52: 'bad-setup',
    53: 'limit-reached',
    55: 'limit-reached',
    130: 'interrupted',
  },
}
