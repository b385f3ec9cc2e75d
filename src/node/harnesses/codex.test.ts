import { expect, test } from 'vitest'
import { codex } from './codex.ts'
import { describeHarness, exampleSetup } from './harness.contract.ts'

describeHarness(codex)

test('Codex is told of the gateway by its config, and stays off the network', () => {
  const { files, env, args } = codex.configure(exampleSetup)
  expect(files).toMatchInlineSnapshot(`
    {
      ".codex/config.toml": "model = "Qwen/Qwen3-8B"
    model_provider = "polar"
    model_context_window = 131072
    check_for_update_on_startup = false
    # A tool that runs on the provider's side; engines have none.
    web_search = "disabled"

    [model_providers.polar]
    name = "polar"
    base_url = "http://127.0.0.1:4000/s/ses_1/v1"
    env_key = "POLAR_API_KEY"
    wire_api = "responses"

    [features]
    view_image = true
    # Each of these talks to other hosts.
    plugins = false
    apps = false
    remote_plugin = false

    [analytics]
    enabled = false

    [feedback]
    enabled = false
    ",
    }
  `)
  expect(env).toEqual({ POLAR_API_KEY: 'sk-polar-secret' })
  expect(args).toEqual(['exec', '--dangerously-bypass-approvals-and-sandbox', '--skip-git-repo-check', '-'])
})

test('Codex has no tool for images when the model reads text only', () => {
  const { files } = codex.configure({ ...exampleSetup, images: false })
  expect(files['.codex/config.toml']).toContain('[features]\nview_image = false\n')
})
