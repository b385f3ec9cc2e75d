import { answerTokens, toJsonFile, type Harness } from './harness.ts'

export const claudeCode: Harness = {
  name: 'claude_code',
  title: 'Claude Code',
  npm: { package: '@anthropic-ai/claude-code', version: '2.1.325' },
  command: 'claude',
  program: (platform) => ({
    kind: 'native',
    paths: [
      `node_modules/@anthropic-ai/claude-code-${platform}/claude`,
      `node_modules/@anthropic-ai/claude-code-${platform}-musl/claude`,
    ],
  }),
  dialect: 'anthropic-messages',
  hasSubAgents: true,
  configure({ baseUrl, key, model, contextTokens }) {
    const settings = {
      // Asks the vendor about every host before it fetches a page.
      skipWebFetchPreflight: true,
      // A tool that runs on the provider's side; engines have none.
      permissions: { deny: ['WebSearch'] },
    }
    return {
      files: { '.claude/settings.json': toJsonFile(settings) },
      env: {
        ANTHROPIC_BASE_URL: baseUrl,
        ANTHROPIC_API_KEY: key,
        ANTHROPIC_MODEL: model,
        // Sub-agents may ask for a model by its class.
        ANTHROPIC_DEFAULT_OPUS_MODEL: model,
        ANTHROPIC_DEFAULT_SONNET_MODEL: model,
        ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
        // A model it does not know would count as one of a million tokens.
        CLAUDE_CODE_MAX_CONTEXT_TOKENS: String(contextTokens),
        CLAUDE_CODE_MAX_OUTPUT_TOKENS: String(answerTokens(contextTokens)),
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
        DISABLE_TELEMETRY: '1',
        DISABLE_ERROR_REPORTING: '1',
        DISABLE_AUTOUPDATER: '1',
        // A line with a hash of the prompt at the very start, which keeps sessions from sharing any prefix.
        CLAUDE_CODE_ATTRIBUTION_HEADER: '0',
        // As root it refuses to work without asking unless it is told that it is in a sandbox.
        IS_SANDBOX: '1',
      },
      args: ['--print', '--dangerously-skip-permissions'],
    }
  },
  exitCodes: { 1: 'gave-up' },
}
