import { execFileSync } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'

export const root = dirname(import.meta.dirname)

export function renderTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => '---'), ...rows]
  return lines.map((cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`).join('\n')
}

/**
 * Formats a page like `npm run format`, and writes it if its file differs; with --check it writes nothing, names the command
 * that would, and lets this process fail. `path` is relative to the repository root.
 */
export async function writePage(path: string, page: string, command: string): Promise<void> {
  const text = format(path, page)
  if ((await readFile(join(root, path), 'utf8').catch(() => '')) === text) return
  if (process.argv.includes('--check')) {
    process.exitCode = 1
    console.log(`${path} is out of date; run ${command}`)
    return
  }
  await writeFile(join(root, path), text)
  console.log(`wrote ${path}`)
}

function format(path: string, page: string): string {
  if (path.endsWith('.py')) return page
  const args = [join(root, 'node_modules/.bin/oxfmt'), `--stdin-filepath=${path}`]
  return execFileSync(process.execPath, args, { cwd: root, input: page, encoding: 'utf8' })
}
