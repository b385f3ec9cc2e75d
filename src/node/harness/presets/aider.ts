import * as z from 'zod'
import { answerTokens, defineHarness, optional, repeated, toJsonFile, words } from './harness.ts'

const AiderSettings = z.strictObject({
  edit_format: z.string().min(1).optional().describe("Format of the model's edits, such as diff or whole"),
  architect: z.boolean().optional().describe('Plans in one call and edits in a second call'),
  git: z.boolean().optional().describe('Absent: yes; Aider creates a repository if there is none'),
  auto_commits: z.boolean().optional().describe('Absent: no'),
  map_tokens: z.int().min(0).optional().describe('Size of the repository map; 0: none'),
  files: words.describe('Files that may be edited from the start'),
  read: words.describe('Read-only files in the context from the start'),
  test_command: z.string().min(1).optional().describe('Runs after every change; failures are sent to the model'),
  lint_command: z.string().min(1).optional(),
  reasoning_effort: z.string().min(1).optional(),
  stream: z.boolean().optional(),
  extra_args: words,
})

export const aider = defineHarness({
  name: 'aider',
  title: 'Aider',
  package: {
    registry: 'pypi',
    name: 'aider-chat',
    version: '0.86.2',
    imports: { modules: ['aider.main', 'litellm'], env: { LITELLM_LOCAL_MODEL_COST_MAP: 'True' } },
  },
  command: 'aider',
  program: () => ({ kind: 'python', paths: ['python/bin/python3'] }),
  dialect: 'openai-chat',
  hasSubAgents: false,
  instruction: 'file',
  mcpTransports: [],
  settings: AiderSettings,
  configure({ baseUrl, key, model, contextTokens, home, instructionFile }, settings) {
    const name = `openai/${model}`
    const about = {
      litellm_provider: 'openai',
      mode: 'chat',
      max_input_tokens: contextTokens,
      max_output_tokens: answerTokens(contextTokens),
      input_cost_per_token: 0,
      output_cost_per_token: 0,
    }
    const { test_command: test, lint_command: lint, architect } = settings
    return {
      // Without this file Aider downloads a list of models.
      files: { [METADATA]: toJsonFile({ [name]: about }) },
      env: { OPENAI_API_BASE: `${baseUrl}/v1`, OPENAI_API_KEY: key, LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
      args: [
        '-m',
        'aider',
        ...optional('--model', name),
        ...optional('--weak-model', name),
        ...optional('--editor-model', name),
        ...optional('--message-file', instructionFile),
        '--yes-always',
        ...optional('--model-metadata-file', `${home}/${METADATA}`),
        // By default the history files are in the workdir.
        ...optional('--input-history-file', `${home}/.polar/aider-input`),
        ...optional('--chat-history-file', `${home}/.polar/aider-chat.md`),
        ...QUIET,
        ...((settings.git ?? true) ? ['--no-gitignore', '--no-dirty-commits'] : ['--no-git']),
        settings.auto_commits ? '--auto-commits' : '--no-auto-commits',
        ...((settings.stream ?? true) ? [] : ['--no-stream']),
        ...(architect ? ['--architect'] : []),
        ...optional('--edit-format', settings.edit_format),
        ...optional('--map-tokens', settings.map_tokens),
        ...optional('--reasoning-effort', settings.reasoning_effort),
        ...(test === undefined ? [] : ['--test-cmd', test, '--auto-test']),
        ...(lint === undefined ? ['--no-auto-lint'] : ['--lint-cmd', lint]),
        ...repeated('--file', settings.files),
        ...repeated('--read', settings.read),
        ...(settings.extra_args ?? []),
      ],
    }
  },
  // Most failures also end with 0 and a message.
  exitCodes: { 1: 'gave-up', 2: 'bad-setup' },
})

const METADATA = '.polar/aider-models.json'

const QUIET = [
  '--no-check-update',
  '--no-show-release-notes',
  '--no-show-model-warnings',
  '--analytics-disable',
  '--no-pretty',
  '--no-fancy-input',
  '--no-notifications',
  '--no-suggest-shell-commands',
  '--no-detect-urls',
  '--disable-playwright',
]
