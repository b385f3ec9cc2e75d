import { spawn } from 'node:child_process'

export interface ProgramResult {
  /** Exit code as in a shell; 127 if the program cannot be started. */
  exitCode: number
  stdout: string
  /** The reason, if the program cannot be started. */
  stderr: string
}

export interface ProgramOptions {
  cwd?: string
  env: Readonly<Record<string, string | undefined>>
  signal?: AbortSignal
}

/** Runs a program without input, and returns its output. */
export function runProgram(
  [file, ...args]: readonly [string, ...string[]],
  { cwd, env, signal }: ProgramOptions,
): Promise<ProgramResult> {
  return new Promise((resolve) => {
    const child = spawn(file, args, { cwd, env: { ...env }, signal, stdio: ['ignore', 'pipe', 'pipe'] })
    let stdout = ''
    let stderr = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    child.once('error', (error) => resolve({ exitCode: 127, stdout, stderr: `${stderr}${error.message}` }))
    child.once('close', (code) => resolve({ exitCode: code ?? 128, stdout, stderr }))
  })
}
