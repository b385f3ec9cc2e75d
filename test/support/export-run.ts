/** `node export-run.ts SESSIONS FORMAT TO`: exports all sessions of a folder, and prints time and memory. */
import { command } from '../../src/cli/commands/export.ts'

const [dir = '', format = '', to = ''] = process.argv.slice(2)
// Excludes the cost of loading the program.
const before = process.memoryUsage().rss
const begun = performance.now()
const code = await command.execute(['all', '--from', dir, '--format', format, '--to', to])
console.log(
  JSON.stringify({
    code,
    seconds: (performance.now() - begun) / 1000,
    before,
    peak: process.resourceUsage().maxRSS * 1024,
  }),
)
