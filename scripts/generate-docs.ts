// Writes the pages that are made from the source: `npm run docs`. With --check it writes nothing and names stale pages.
import { execFileSync } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { boundaryOf, FailureCode, failureClasses } from '../src/model/failure.ts'

const root = dirname(import.meta.dirname)

interface Page {
  /** Relative to the repository root. */
  path: string
  render(): string
}

const pages: readonly Page[] = [{ path: 'docs/failures.md', render: renderFailures }]

const isCheck = process.argv.includes('--check')
const stale: string[] = []
for (const page of pages) {
  const file = join(root, page.path)
  const text = format(page.path, page.render())
  if ((await readFile(file, 'utf8').catch(() => '')) === text) continue
  stale.push(page.path)
  if (!isCheck) await writeFile(file, text)
}
for (const path of stale) console.log(isCheck ? `${path} is out of date; run npm run docs` : `wrote ${path}`)
if (isCheck && stale.length > 0) process.exitCode = 1

function renderFailures(): string {
  const rows = FailureCode.options.map((code) => {
    const { blame, retryable, status, meaning } = failureClasses[code]
    return [`\`${code}\``, boundaryOf(code), blame, retryable ? 'yes' : 'no', String(status), meaning]
  })
  return `# Failures

Every way a session can fail. The code is stable and is what programs should look at; the boundary is the seam at which
the failure was noticed. Only failures that are the policy's own doing may be scored: the others leave a session without
a reward, never with a zero. Retryable means that the same attempt may succeed later without anyone changing anything.
The status is what the caller of an HTTP request sees; for \`upstream.*\` the engine's own status takes its place.

${renderTable(['Code', 'Boundary', 'Blame', 'Retryable', 'Status', 'Meaning'], rows)}

This page is made from \`src/model/failure.ts\` by \`npm run docs\`.
`
}

function renderTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => '---'), ...rows]
  return lines.map((cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`).join('\n')
}

/** As `npm run format` would leave it, so that the two never disagree. */
function format(path: string, text: string): string {
  const args = [join(root, 'node_modules/.bin/oxfmt'), `--stdin-filepath=${path}`]
  return execFileSync(process.execPath, args, { cwd: root, input: text, encoding: 'utf8' })
}
