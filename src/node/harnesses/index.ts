import { claudeCode } from './claude-code.ts'
import { codex } from './codex.ts'
import { geminiCli } from './gemini-cli.ts'
import type { Harness } from './harness.ts'
import { opencode } from './opencode.ts'
import { pi } from './pi.ts'
import { qwenCode } from './qwen-code.ts'

export const harnesses: readonly [Harness, ...Harness[]] = [codex, claudeCode, geminiCli, qwenCode, opencode, pi]
