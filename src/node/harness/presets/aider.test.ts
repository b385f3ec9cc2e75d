import { expect, test } from 'vitest'
import { aider } from './aider.ts'
import { describeHarness, exampleSetup } from './harness.contract.ts'

describeHarness(aider)

test('Aider reads the gateway from variables and the model from a file, and uses one model for all calls', () => {
  const { files, env, args } = aider.configure(exampleSetup)
  expect(env).toMatchObject({ OPENAI_API_BASE: 'http://127.0.0.1:4000/s/ses_1/v1', OPENAI_API_KEY: 'sk-polar-secret' })
  expect(args.slice(0, 10)).toEqual([
    '-m',
    'aider',
    '--model',
    'openai/Qwen/Qwen3-8B',
    '--weak-model',
    'openai/Qwen/Qwen3-8B',
    '--editor-model',
    'openai/Qwen/Qwen3-8B',
    '--message-file',
    '/sandbox/home/.polar/instruction.md',
  ])
  expect(JSON.parse(files['.polar/aider-models.json'] ?? '')).toMatchObject({
    'openai/Qwen/Qwen3-8B': { max_input_tokens: 131_072, max_output_tokens: 32_000 },
  })
})

test('Aider settings become flags', () => {
  const settings = {
    git: false,
    edit_format: 'whole',
    files: ['a.py', 'b.py'],
    test_command: 'pytest -q',
    stream: false,
  }
  const { args } = aider.configure({ ...exampleSetup, settings })
  expect(args.join(' ')).toContain('--no-git --no-auto-commits --no-stream --edit-format whole --test-cmd pytest -q')
  expect(args.join(' ')).toContain('--file a.py --file b.py')
})
