import { existsSync } from 'node:fs'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { shellWord } from '../../lib/process/shell-word.ts'

const examples = fileURLToPath(new URL('../../../examples', import.meta.url))

/** Returns example commands that work in the current folder. */
export function exampleLines(data: string, script: string | undefined): string[] {
  const file = join(examples, 'tasks', script === join(examples, 'scripts/hello.yaml') ? 'hello.yaml' : 'ask.yaml')
  const folder = data === join(process.cwd(), '.polar/up') ? '' : ` --dir ${word(data)}`
  const submit = existsSync(file) ? word(near(file)) : 'TASK.yaml'
  const polar = polarCommand()
  return [`    ${polar} task submit ${submit} --wait${folder}`, `    ${polar} task ls${folder}`]
}

/** Returns the command that started this process: installed, by npm, or from the sources. */
function polarCommand(): string {
  if (process.env['npm_lifecycle_event'] === 'polar') return 'npm run polar --'
  const [, script = ''] = process.argv
  return /\.[jt]s$/.test(script) ? `node ${word(near(script))}` : 'polar'
}

function near(path: string): string {
  const short = relative(process.cwd(), path)
  return short.startsWith('..') ? path : short
}

function word(text: string): string {
  return /^[\w./:@+-]+$/.test(text) ? text : shellWord(text)
}
