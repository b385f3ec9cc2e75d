import { glob, lstat, readdir } from 'node:fs/promises'
import { join, posix, relative } from 'node:path'
import { shellWord } from '../../lib/process/shell-word.ts'
import type { PrepareAction } from '../../model/task.ts'

/** What a Dockerfile makes of a sandbox that has its programs already. */
export interface InterpretedEnvironment {
  /** Undefined when nothing says it. */
  workdir?: string | undefined
  /** As it is at the end, for all commands. */
  env: Record<string, string>
  prepare: PrepareAction[]
}

/** What an image of its own would have; for `ENV PATH=/more:$PATH`. */
const USUAL_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** They say how a container is started or described; a sandbox is started otherwise. */
const WITHOUT_EFFECT = new Set([
  'CMD',
  'ENTRYPOINT',
  'EXPOSE',
  'HEALTHCHECK',
  'LABEL',
  'MAINTAINER',
  'STOPSIGNAL',
  'USER',
  'VOLUME',
])

/**
 * Reads a Dockerfile of one stage as steps that prepare a sandbox: WORKDIR, COPY, ADD of plain files, ENV, ARG and RUN.
 * FROM is passed over: the sandbox's own programs take its place, so a RUN that needs what they cannot give fails as a step.
 * Everything runs as the sandbox's one user. With `stepsMatter` false only the workdir and variables are wanted, and what
 * cannot be done is no problem.
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

  /** Undefined, or why it cannot be done. */
  async read(name: string, rest: string): Promise<string | undefined> {
    if (/(?:^|\s)<<[-~]?["']?\w/.test(rest) && name !== 'ENV') return `${name} with text below it (<<) is not supported`
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
    // All of one line see what was there before it.
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
    if (target === undefined || words.length === 0) return `${name} wants a source and a target`
    if (name === 'ADD' && words.some((word) => /^\w+:\/\/|^git@|\.(?:tar|tgz|tar\.\w+)$/.test(word))) {
      return 'ADD of addresses and archives is not supported; COPY files, or RUN what fetches them'
    }
    const sources: string[] = []
    for (const word of words) {
      const found = await this.#find(word)
      if (found.length === 0) return `there is no ${word} in environment/`
      sources.push(...found)
    }
    const place = posix.resolve(this.workdir ?? '/', target)
    const isFolder = /(?:^|\/)\.{0,2}$/.test(target) || place === this.workdir || sources.length > 1
    for (const source of sources) await this.#copy(source, place, isFolder)
    const mode = options.find((option) => option.startsWith('--chmod='))?.slice('--chmod='.length)
    if (mode !== undefined) this.#run(`chmod -R ${shellWord(mode)} ${shellWord(place)}`, '/')
    return undefined
  }

  /** Paths of this machine; none outside of the context. */
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

  /** Of a folder what is in it is copied, not the folder. */
  async #copy(source: string, place: string, isFolder: boolean): Promise<void> {
    const stats = await lstat(source)
    if (!stats.isDirectory()) {
      const target = isFolder ? posix.join(place, posix.basename(source)) : place
      this.prepare.push({ type: 'upload_file', source, target })
      return
    }
    for (const entry of (await readdir(source, { withFileTypes: true })).toSorted((a, b) =>
      a.name < b.name ? -1 : 1,
    )) {
      const type = entry.isDirectory() ? 'upload_dir' : 'upload_file'
      this.prepare.push({ type, source: join(source, entry.name), target: posix.join(place, entry.name) })
    }
  }

  /** $NAME, ${NAME} and ${NAME:-else}; what is not set is empty. */
  #expand(text: string): string {
    const values: Record<string, string> = { PATH: USUAL_PATH, ...this.#args, ...this.env }
    return text.replaceAll(
      /\\\$|\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})/g,
      (found, bare?: string, braced?: string, fallback?: string) =>
        found === '\\$' ? '$' : ((values[bare ?? braced!] || fallback) ?? ''),
    )
  }
}

/** Lines joined where they go on, comments left out; `line` is where one begins. */
function* instructionsOf(text: string): Generator<{ line: number; name: string; rest: string }> {
  let begun: { line: number; parts: string[] } | undefined
  for (const [index, raw] of text.split(/\r?\n/).entries()) {
    if (raw.trim() === '' || /^\s*#/.test(raw)) continue
    begun ??= { line: index + 1, parts: [] }
    const goesOn = /\\\s*$/.test(raw)
    begun.parts.push(goesOn ? raw.replace(/\\\s*$/, '') : raw)
    if (goesOn) continue
    yield toInstruction(begun)
    begun = undefined
  }
  if (begun !== undefined) yield toInstruction(begun)
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

/** The words of the form with brackets; undefined when it is the other one. */
function jsonWords(text: string): string[] | undefined {
  if (!text.startsWith('[')) return undefined
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) && value.every((word) => typeof word === 'string') ? value : undefined
  } catch {
    return undefined
  }
}

/** Split at spaces, with quotes and backslashes as a shell has them; single quotes keep a dollar as it is. */
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
