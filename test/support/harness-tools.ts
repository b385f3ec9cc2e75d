type Json = string | boolean | { [name: string]: Json }

/** A tool call of a script. */
export interface PlayedCall {
  name: string
  arguments: Record<string, Json>
}

/** Common tools of coding agents, as the tool calls of one harness. Paths are relative to `cwd`. */
export interface HarnessTools {
  shell(command: string): PlayedCall
  write(path: string, content: string, cwd: string): PlayedCall
  read(path: string, cwd: string): PlayedCall
  image(path: string, cwd: string): PlayedCall
  /** Returns the name of an MCP server's tool; absent if the harness does not support MCP. */
  mcpTool?(server: string, tool: string): string
  /** Absent if the harness has no sub-agents. */
  subagent?: {
    start(prompt: string): PlayedCall
    /** Last tool call of a sub-agent; absent: it ends with a text. */
    finish?(text: string): PlayedCall
    /**
     * `foreground`: the result of the call is the sub-agent's. `notified`: the call returns immediately, and
     * the end of the sub-agent triggers another call of the agent. `detached`: the agent must check for itself.
     */
    style: 'foreground' | 'notified' | 'detached'
  }
}

/** Requests name a tool in a namespace by namespace and tool. */
const CODEX_SPAWN = 'multi_agent_v1__spawn_agent'

export const harnessTools: Readonly<Record<string, HarnessTools>> = {
  codex: {
    shell: (cmd) => ({ name: 'exec_command', arguments: { cmd } }),
    // For an unknown model, Codex has no tools to write or read.
    write: (path, content) => codexShell(`printf '%s' '${content}' > ${path}`),
    read: (path) => codexShell(`cat ${path}`),
    image: (path, cwd) => ({ name: 'view_image', arguments: { path: `${cwd}/${path}` } }),
    mcpTool: (server, tool) => `mcp__${server}__${tool}`,
    subagent: {
      start: (message) => ({ name: CODEX_SPAWN, arguments: { message } }),
      style: 'detached',
    },
  },
  claude_code: {
    shell: (command) => ({ name: 'Bash', arguments: { command, description: 'Run a command' } }),
    write: (path, content, cwd) => ({ name: 'Write', arguments: { file_path: `${cwd}/${path}`, content } }),
    read: (path, cwd) => ({ name: 'Read', arguments: { file_path: `${cwd}/${path}` } }),
    image: (path, cwd) => ({ name: 'Read', arguments: { file_path: `${cwd}/${path}` } }),
    mcpTool: (server, tool) => `mcp__${server}__${tool}`,
    subagent: {
      start: (prompt) => ({
        name: 'Agent',
        arguments: { description: 'A small task', prompt, subagent_type: 'general-purpose' },
      }),
      style: 'notified',
    },
  },
  gemini_cli: {
    shell: (command) => ({ name: 'run_shell_command', arguments: { command } }),
    write: (path, content) => ({ name: 'write_file', arguments: { file_path: path, content } }),
    read: (path) => ({ name: 'read_file', arguments: { file_path: path } }),
    image: (path) => ({ name: 'read_file', arguments: { file_path: path } }),
    mcpTool: (server, tool) => `mcp_${server}_${tool}`,
    subagent: {
      start: (prompt) => ({ name: 'invoke_agent', arguments: { agent_name: 'generalist', prompt } }),
      finish: (response) => ({ name: 'complete_task', arguments: { result: { response } } }),
      style: 'foreground',
    },
  },
  qwen_code: {
    shell: (command) => ({ name: 'run_shell_command', arguments: { command, is_background: false } }),
    write: (path, content, cwd) => ({ name: 'write_file', arguments: { file_path: `${cwd}/${path}`, content } }),
    read: (path, cwd) => ({ name: 'read_file', arguments: { file_path: `${cwd}/${path}` } }),
    image: (path, cwd) => ({ name: 'read_file', arguments: { file_path: `${cwd}/${path}` } }),
    mcpTool: (server, tool) => `mcp__${server}__${tool}`,
    subagent: {
      start: (prompt) => ({ name: 'agent', arguments: { description: 'A small task', prompt } }),
      style: 'notified',
    },
  },
  opencode: {
    shell: (command) => ({ name: 'bash', arguments: { command, description: 'Run a command' } }),
    write: (path, content, cwd) => ({ name: 'write', arguments: { filePath: `${cwd}/${path}`, content } }),
    read: (path, cwd) => ({ name: 'read', arguments: { filePath: `${cwd}/${path}` } }),
    image: (path, cwd) => ({ name: 'read', arguments: { filePath: `${cwd}/${path}` } }),
    mcpTool: (server, tool) => `${server}_${tool}`,
    subagent: {
      start: (prompt) => ({
        name: 'task',
        arguments: { description: 'A small task', prompt, subagent_type: 'general' },
      }),
      style: 'foreground',
    },
  },
  pi: {
    shell: (command) => ({ name: 'bash', arguments: { command } }),
    write: (path, content) => ({ name: 'write', arguments: { path, content } }),
    read: (path) => ({ name: 'read', arguments: { path } }),
    image: (path) => ({ name: 'read', arguments: { path } }),
    mcpTool: (server, tool) => `${server}_${tool}`,
  },
  openhands: {
    shell: (command) => ({ name: 'terminal', arguments: { command } }),
    write: (path, content, cwd) => ({
      name: 'file_editor',
      arguments: { command: 'create', path: `${cwd}/${path}`, file_text: content },
    }),
    read: (path, cwd) => ({ name: 'file_editor', arguments: { command: 'view', path: `${cwd}/${path}` } }),
    image: (path, cwd) => ({ name: 'file_editor', arguments: { command: 'view', path: `${cwd}/${path}` } }),
    // With a single server, the server's name is omitted.
    mcpTool: (server, tool) => `${server}_${tool}`,
  },
}

/** For a harness without tools, or whose tools are not listed here. */
export const noTools: HarnessTools = { shell: refuse, write: refuse, read: refuse, image: refuse }

function refuse(): never {
  throw new Error('test/support/harness-tools.ts does not know the tools of this harness')
}

function codexShell(cmd: string): PlayedCall {
  return { name: 'exec_command', arguments: { cmd } }
}
