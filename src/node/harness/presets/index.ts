import { aider } from './aider.ts'
import { claudeCode } from './claude-code.ts'
import { codex } from './codex.ts'
import { geminiCli } from './gemini-cli.ts'
import type { Harness, PackagedHarness } from './harness.ts'
import { miniSweAgent } from './mini-swe-agent.ts'
import { opencode } from './opencode.ts'
import { openhands } from './openhands.ts'
import { pi } from './pi.ts'
import { qwenCode } from './qwen-code.ts'
import { shell } from './shell.ts'

/** Harnesses that `polar harness install` installs. */
export const harnesses: readonly [PackagedHarness, ...PackagedHarness[]] = [
  codex,
  claudeCode,
  geminiCli,
  qwenCode,
  opencode,
  pi,
  miniSweAgent,
  aider,
  openhands,
]

/** All names that a task may use. */
export const presets: readonly Harness[] = [...harnesses, shell]
