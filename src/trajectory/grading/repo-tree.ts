import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import { loadProgram } from '../../lib/process/load-program.ts'
import { RolloutError } from '../../model/failure.ts'
import type { CommandResult, Workspace } from '../../model/workspace.ts'
import type { Change } from './change-policy.ts'
import { parseBlobs, parseChanges, parseIndex, type ChangeStore } from './choose-changes.ts'
import { tail } from './run-grading.ts'

const GIT_MS = 300_000
const LIST_BYTES = 64 * 1024 * 1024

const openRepo = loadProgram(new URL('./repo-tree/open.sh', import.meta.url))
/** Exit codes of the scripts. */
const TOO_LARGE = 4
const UNAPPLIABLE = 5

const archive = loadProgram(new URL('./repo-tree/archive.sh', import.meta.url))
const compare = loadProgram(new URL('./repo-tree/compare.sh', import.meta.url))
/** Names of the files of a tree. */
const LIST_FILES = 'borrow_objects; git ls-tree -r -z --name-only "$1"'
/** Every file of the agent's tree, with mode and object name. */
const LIST_AGENT = 'borrow_objects; GIT_INDEX_FILE="$scratch/agent" git ls-files -s -z'
/** Contents of the objects whose names are read from stdin. */
const READ_BLOBS = 'borrow_objects; git cat-file --batch'
const WRITE_BLOB = 'borrow_objects; git hash-object -w --stdin'

const write = loadProgram(new URL('./repo-tree/write.sh', import.meta.url))

export interface RepoDifference {
  changes: Change[]
  /** Files of the grader's own state. */
  basePaths: ReadonlySet<string>
  store: ChangeStore
  /** Applies the chosen changes and returns them as a patch. */
  write(chosen: readonly Change[]): Promise<Buffer>
}

/**
 * Copies a repository's files out of the agent's sandbox as an archive, which is not unpacked on this machine. Returns why the
 * files cannot be packed, else undefined. To find the cause, run `whyNotPacked` in a sandbox that the agent never entered.
 */
export async function collectTree(
  agent: Workspace,
  repo: string,
  target: string,
  maxBytes: number,
): Promise<string | undefined> {
  const scratch = newScratchFolder()
  const problem = await pack(agent, repo, scratch, maxBytes)
  if (problem === undefined) await agent.download(`${scratch}/tree.tar`, target, { maxBytes, maxFiles: 1 })
  return problem
}

/** Returns why the files of a repository cannot be packed; undefined if they can. */
export function whyNotPacked(workspace: Workspace, repo: string, maxBytes: number): Promise<string | undefined> {
  return pack(workspace, repo, newScratchFolder(), maxBytes)
}

async function pack(
  workspace: Workspace,
  repo: string,
  scratch: string,
  maxBytes: number,
): Promise<string | undefined> {
  const packed = await runIn(workspace, repo, scratch, { script: archive(), args: [String(maxBytes)] })
  if (packed.exitCode === 0) return undefined
  if (packed.exitCode === TOO_LARGE) return `there is more than ${maxBytes} bytes`
  return tail(packed.stderr, 500) || `exit code ${packed.exitCode}`
}

/**
 * Compares the agent's files or patch with a repository that the agent never entered. Runs no code of the agent. `changes` is
 * undefined, with the reason, if the patch cannot be applied or the archive cannot be unpacked.
 */
export async function compareTree(
  grader: Workspace,
  repo: string,
  submitted: { kind: 'tree' | 'patch'; file: string },
): Promise<RepoDifference | { changes: undefined; why: string }> {
  const scratch = newScratchFolder()
  await grader.upload(submitted.file, `${scratch}/submitted`)
  const compared = await runIn(grader, repo, scratch, { script: compare(), args: [submitted.kind] })
  const said = tail(compared.stderr, 8000)
  if (compared.exitCode === UNAPPLIABLE && !/No space left|Disk quota/.test(said)) {
    return { changes: undefined, why: said || 'the files cannot be read' }
  }
  if (compared.exitCode !== 0) throw crashed(repo, said)
  if (compared.stdoutBytes > compared.stdout.length) {
    return { changes: undefined, why: `the names of the changed files have more than ${LIST_BYTES} bytes` }
  }
  const end = compared.stdout.indexOf('\n')
  const start = compared.stdout.subarray(0, end).toString()
  const listed = await runIn(grader, repo, scratch, { script: LIST_FILES, args: [start] })
  if (listed.exitCode !== 0 || listed.stdoutBytes > listed.stdout.length) throw crashed(repo, tail(listed.stderr, 1000))
  return {
    changes: parseChanges(compared.stdout.subarray(end + 1)),
    basePaths: new Set(listed.stdout.toString('utf8').split('\0').slice(0, -1)),
    store: toStore(grader, repo, scratch),
    async write(chosen) {
      const entries = chosen.map(({ mode, blob, path, status }) =>
        status === 'D' ? `0 ${blob}\t${path}\0` : `${mode} ${blob}\t${path}\0`,
      )
      const written = await runIn(grader, repo, scratch, { script: write(), args: [start], stdin: entries.join('') })
      if (written.exitCode !== 0) throw crashed(repo, tail(written.stderr, 1000))
      return written.stdout
    },
  }
}

function toStore(grader: Workspace, repo: string, scratch: string): ChangeStore {
  return {
    repo: posix.resolve(grader.workdir, repo),
    async readBlobs(names) {
      const read = await runIn(grader, repo, scratch, { script: READ_BLOBS, stdin: `${names.join('\n')}\n` })
      return parseBlobs(read.stdout)
    },
    async writeBlob(text) {
      const written = await runIn(grader, repo, scratch, { script: WRITE_BLOB, stdin: text })
      return written.exitCode === 0 ? written.stdout.toString('utf8').trim() : undefined
    },
    async listAgentFiles() {
      return parseIndex((await runIn(grader, repo, scratch, { script: LIST_AGENT })).stdout)
    },
  }
}

function newScratchFolder(): string {
  return `/tmp/polar-${randomBytes(8).toString('hex')}`
}

function runIn(
  workspace: Workspace,
  repo: string,
  scratch: string,
  { script, args = [], stdin }: { script: string; args?: readonly string[]; stdin?: string },
): Promise<CommandResult> {
  return workspace.run({
    command: ['/bin/sh', '-c', openRepo() + script, 'sh', repo, scratch, ...args],
    stdin,
    outputBytes: LIST_BYTES,
    timeoutMs: GIT_MS,
  })
}

function crashed(repo: string, said: string): RolloutError {
  return new RolloutError('evaluator.crashed', `${repo} in the grader's sandbox: ${said || 'git printed no message'}`)
}
