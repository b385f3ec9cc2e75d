import { loadProgram } from '../../../lib/process/load-program.ts'
import type { McpServer } from '../../../model/task.ts'

const extension = loadProgram(new URL('./pi-mcp-extension.mjs', import.meta.url))

/** EX_CONFIG of sysexits.h. */
export const NO_SERVER = 78

/**
 * Returns the text of an extension for pi, which has no MCP support of its own. The extension offers the tools of the servers;
 * a server that does not answer ends pi with `NO_SERVER`, so that the agent does not work without its tools.
 */
export function mcpExtension(servers: readonly McpServer[]): string {
  return `${extension()}\nexport default (pi) => connectServers(pi, ${JSON.stringify(servers)}, ${NO_SERVER})\n`
}
