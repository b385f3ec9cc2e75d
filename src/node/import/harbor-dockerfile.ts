import { glob, lstat, readdir } from 'node:fs/promises'
import { join, posix, relative } from 'node:path'
import { parseJson } from '../../lib/json/json-text.ts'
import { shellWord } from '../../lib/process/shell-word.ts'
import type { PrepareAction } from '../../model/task.ts'

/** The effect of a Dockerfile on a sandbox that already has the programs. */
export interface InterpretedEnvironment {
  /** Undefined if the Dockerfile has no WORKDIR. */
  workdir?: string | undefined
  /** The variables at the end of the Dockerfile, for all commands. */
  env: Record<string, string>
  prepare: PrepareAction[]
}

/** The PATH of most images, for `ENV PATH=/more:$PATH`. */
const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** Instructions about how a container starts; a sandbox does not use them. */
const WITHOUT_EFFECT = new Set('CMD ENTRYPOINT EXPOSE HEALTHCHECK LABEL MAINTAINER STOPSIGNAL USER VOLUME'.split(' '))

/**
 * Converts a Dockerfile with one stage to steps that prepare a sandbox: WORKDIR, COPY, ADD of plain files, ENV, ARG and RUN.
 * Ignores FROM: the sandbox's own programs are used instead, so a RUN that needs other programs fails as a step. All steps
 * run as the only user of the sandbox. With `stepsMatter` false only the workdir and the variables are used, and
 * unsupported instructions are not reported.
 */
export async function interpretDockerfile(
  text: string,
  context: string,
  { stepsMatter }: { stepsMatter: boolean },
): Promise<InterpretedEnvironment & { problems: string[] }> {
  const reader = new Interpreter(context)
  const problems: string[] = []
  for (const { line, name, rest } of instructionsOf(text)) {
    const problem = await reader.read(name, rest)
    if (problem !== undefined && stepsMatter) problems.push(`environment/Dockerfile, line ${line}: ${problem}`)
  }
  return { workdir: reader.workdir, env: reader.env, prepare: reader.prepare, problems }
}

class Interpreter {
  readonly env: Record<string, string> = {}
  readonly prepare: PrepareAction[] = []
  workdir: string | undefined
  readonly #context: string
  readonly #args: Record<string, string> = {}
  #stages = 0

  constructor(context: string) {
    this.#context = context
  }

  /** Returns why the instruction is not supported; undefined if it is. */
  async read(name: string, rest: string): Promise<string | undefined> {
    if (/(?:^|\s)<<[-~]?["']?\w/.test(rest) && name !== 'ENV')
      return `${name} with a here-document (<<) is not supported`
    switch (name) {
      case 'FROM':
        this.#stages += 1
        return this.#stages > 1 ? 'more than one stage is not supported; build an image' : undefined
      case 'ARG':
        return this.#readArg(rest)
      case 'ENV':
        return this.#readEnv(rest)
      case 'WORKDIR':
        this.workdir = posix.resolve(this.workdir ?? '/', this.#expand(rest))
        this.#run(`mkdir -p -- ${shellWord(this.workdir)}`, '/')
        return undefined
      case 'RUN':
        return this.#readRun(rest)
      case 'COPY':
      case 'ADD':
        return this.#readCopy(name, rest)
      default:
        return WITHOUT_EFFECT.has(name) ? undefined : `${name} is not supported; build an image`
    }
  }

  #readArg(rest: string): undefined {
    for (const [key, value] of pairsOf(rest)) if (value !== undefined) this.#args[key] = this.#expand(value)
  }

  #readEnv(rest: string): string | undefined {
    const [first = '', ...words] = rest.split(/\s+/)
    if (!first.includes('=')) {
      this.env[first] = this.#expand(words.join(' '))
      return words.length === 0 ? `ENV ${first} has no value` : undefined
    }
    const values = pairsOf(rest).map(([key, value = '']) => [key, this.#expand(value)] as const)
    // All values of one line are expanded with the variables before that line.
    Object.assign(this.env, Object.fromEntries(values))
    return undefined
  }

  #readRun(rest: string): string | undefined {
    const [options, command] = splitOptions(rest)
    if (options.length > 0) return `RUN ${options.join(' ')} is not supported`
    const words = jsonWords(command)
    this.#run(words === undefined ? command : words.map(shellWord).join(' '), this.workdir ?? '/')
    return undefined
  }

  #run(command: string, cwd: string): void {
    const env = { ...this.#args, ...this.env }
    this.prepare.push({ type: 'exec', command, cwd, env, max_attempts: 1, retry_backoff_seconds: 0 })
  }

  async #readCopy(name: string, rest: string): Promise<string | undefined> {
    const [options, files] = splitOptions(rest)
    const unknown = options.filter((option) => !/^--(?:chown|chmod|link)\b/.test(option))
    if (unknown.length > 0) return `${name} ${unknown.join(' ')} is not supported`
    const words = (jsonWords(files) ?? wordsOf(files)).map((word) => this.#expand(word))
    const target = words.pop()
    if (target === undefined || words.length === 0) return `${name} needs a source and a target`
    if (name === 'ADD' && words.some((word) => /^\w+:\/\/|^git@|\.(?:tar|tgz|tar\.\w+)$/.test(word))) {
      return 'ADD of URLs and archives is not supported; COPY files, or download them with RUN'
    }
    const sources: string[] = []
    for (const word of words) {
      const found = await this.#find(word)
      if (found.length === 0) return `environment/ has no ${word}`
      sources.push(...found)
    }
    const path = posix.resolve(this.workdir ?? '/', target)
    const isFolder = /(?:^|\/)\.{0,2}$/.test(target) || path === this.workdir || sources.length > 1
    for (const source of sources) await this.#copy(source, path, isFolder)
    const mode = options.find((option) => option.startsWith('--chmod='))?.slice('--chmod='.length)
    if (mode !== undefined) this.#run(`chmod -R ${shellWord(mode)} ${shellWord(path)}`, '/')
    return undefined
  }

  /** Returns paths of this machine inside the build context. */
  async #find(word: string): Promise<string[]> {
    const pattern = posix.join('.', posix.resolve('/', word).slice(1))
    if (!/[*?[]/.test(pattern)) {
      const path = join(this.#context, pattern)
      return (await lstat(path).catch(() => undefined)) === undefined ? [] : [path]
    }
    const found: string[] = []
    for await (const each of glob(pattern, { cwd: this.#context })) found.push(join(this.#context, each))
    return found.filter((path) => !relative(this.#context, path).startsWith('..')).toSorted()
  }

  /** Copies the contents of a folder, not the folder itself. */
  async #copy(source: string, path: string, isFolder: boolean): Promise<void> {
    const stats = await lstat(source)
    if (!stats.isDirectory()) {
      const target = isFolder ? posix.join(path, posix.basename(source)) : path
      this.prepare.push({ type: 'upload_file', source, target })
      return
    }
    for (const entry of (await readdir(source, { withFileTypes: true })).toSorted((a, b) =>
      a.name < b.name ? -1 : 1,
    )) {
      const type = entry.isDirectory() ? 'upload_dir' : 'upload_file'
      this.prepare.push({ type, source: join(source, entry.name), target: posix.join(path, entry.name) })
    }
  }

  /** Expands $NAME, ${NAME} and ${NAME:-default}. Variables that are not set are empty. */
  #expand(text: string): string {
    const values: Record<string, string> = { PATH: DEFAULT_PATH, ...this.#args, ...this.env }
    return text.replaceAll(
      /\\\$|\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})/g,
      (found, bare?: string, braced?: string, fallback?: string) =>
        found === '\\$' ? '$' : ((values[bare ?? braced!] || fallback) ?? ''),
    )
  }
}

/** Joins continued lines and skips comments; `line` is the first line of an instruction. */
function* instructionsOf(text: string): Generator<{ line: number; name: string; rest: string }> {
  let open: { line: number; parts: string[] } | undefined
  for (const [index, raw] of text.split(/\r?\n/).entries()) {
    if (raw.trim() === '' || /^\s*#/.test(raw)) continue
    open ??= { line: index + 1, parts: [] }
    const continues = /\\\s*$/.test(raw)
    open.parts.push(continues ? raw.replace(/\\\s*$/, '') : raw)
    if (continues) continue
    yield toInstruction(open)
    open = undefined
  }
  if (open !== undefined) yield toInstruction(open)
}

function toInstruction({ line, parts }: { line: number; parts: string[] }): {
  line: number
  name: string
  rest: string
} {
  const [, name = '', rest = ''] = /^\s*(\S+)\s*(.*)$/s.exec(parts.join(' ')) ?? []
  return { line, name: name.toUpperCase(), rest: rest.trim() }
}

function splitOptions(rest: string): [options: string[], others: string] {
  const [leading = ''] = /^(?:--\S+\s+)*/.exec(rest) ?? []
  return [leading.split(/\s+/).filter((word) => word !== ''), rest.slice(leading.length)]
}

/** The words of the JSON form; undefined for the shell form. */
function jsonWords(text: string): string[] | undefined {
  if (!text.startsWith('[')) return undefined
  const value = parseJson(text)
  return Array.isArray(value) && value.every((word) => typeof word === 'string') ? value : undefined
}

/** Splits at spaces, with the shell's rules for quotes and backslashes; single quotes escape a dollar sign. */
function wordsOf(text: string): string[] {
  const words = text.match(/(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\])+/gs) ?? []
  return words.map((word) =>
    word.replaceAll(
      /\\(.)|"((?:\\.|[^"\\])*)"|'([^']*)'/gs,
      (_, escaped?: string, double?: string, single?: string) => {
        if (escaped !== undefined) return escaped === '$' ? '\\$' : escaped
        return double === undefined ? single!.replaceAll('$', '\\$') : double.replaceAll(/\\(["\\])/g, '$1')
      },
    ),
  )
}

function pairsOf(text: string): [key: string, value: string | undefined][] {
  return wordsOf(text).map((word) => {
    const at = word.indexOf('=')
    return at === -1 ? [word, undefined] : [word.slice(0, at), word.slice(at + 1)]
  })
}
