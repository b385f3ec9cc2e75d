import { KEY_VARIABLE, PROVIDER, type Harness } from './harness.ts'

const targets: Readonly<Record<string, string>> = {
  'linux-x64': 'x86_64-unknown-linux-musl',
  'linux-arm64': 'aarch64-unknown-linux-musl',
  'darwin-x64': 'x86_64-apple-darwin',
  'darwin-arm64': 'aarch64-apple-darwin',
}

export const codex: Harness = {
  name: 'codex',
  title: 'Codex',
  npm: { package: '@openai/codex', version: '0.166.0' },
  command: 'codex',
  program: (platform) => ({
    kind: 'native',
    paths: [`node_modules/@openai/codex-${platform}/vendor/${targets[platform] ?? platform}/bin/codex`],
  }),
  dialect: 'openai-responses',
  hasSubAgents: true,
  configure({ baseUrl, key, model, contextTokens, images }) {
    const config = `model = ${quote(model)}
model_provider = ${quote(PROVIDER)}
model_context_window = ${contextTokens}
check_for_update_on_startup = false
# A tool that runs on the provider's side; engines have none.
web_search = "disabled"

[model_providers.${PROVIDER}]
name = ${quote(PROVIDER)}
base_url = ${quote(`${baseUrl}/v1`)}
env_key = ${quote(KEY_VARIABLE)}
wire_api = "responses"

[features]
view_image = ${images}
# Each of these talks to other hosts.
plugins = false
apps = false
remote_plugin = false

[analytics]
enabled = false

[feedback]
enabled = false
`
    return {
      files: { '.codex/config.toml': config },
      env: { [KEY_VARIABLE]: key },
      args: ['exec', '--dangerously-bypass-approvals-and-sandbox', '--skip-git-repo-check', '-'],
    }
  },
  exitCodes: { 1: 'gave-up', 2: 'bad-setup' },
}

/** What JSON escapes, TOML escapes in the same way. */
function quote(text: string): string {
  return JSON.stringify(text)
}
