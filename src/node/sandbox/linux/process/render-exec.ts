import { shellWord } from '../../../../lib/process/shell-word.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { ExecSpec } from '../../runtimes/runtime.ts'

/** A command with all values that a sandbox adds to it. */
export type CompleteExecSpec = ExecSpec & { cwd: string; env: Readonly<Record<string, string>> }

/** Returns the shell commands that execute a command in its folder, with no other environment than its own. */
export function renderExec({ command, cwd, env }: Pick<CompleteExecSpec, 'command' | 'cwd' | 'env'>): string {
  const variables = Object.entries(env).map(([name, value]) => toWord(`${name}=${value}`))
  const line = [...variables, ...command.map(toWord)].join(' ')
  return `ulimit -c 0; umask 022; cd -- ${toWord(cwd)} || exit 126; exec env -i ${line}`
}

function toWord(text: string): string {
  if (text.includes('\0')) throw new RolloutError('runtime.unsupported', 'A command cannot contain the character NUL')
  return shellWord(text)
}
