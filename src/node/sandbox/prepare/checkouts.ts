import { createHash } from 'node:crypto'
import { mkdir, rm } from 'node:fs/promises'
import { succeeds } from '../../../lib/async/succeeds.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { CheckoutAction } from '../../../model/task.ts'
import { BoundedCache, type CacheLimits } from './bounded-cache.ts'
import { accessTo, type GitCredential } from './git-access.ts'
import { runUntrustedGit, withoutLogin } from './git.ts'
import type { Sandbox } from '../runtimes/runtime.ts'

export interface CheckoutsDeps {
  /** Folder of mirrors and checkouts. Processes with the same folder share them. */
  dir: string
  limits: CacheLimits
  /** Environment of this process, for git and certificates. */
  env: Readonly<Record<string, string | undefined>>
  /** The only credentials for repositories; absent: none. */
  credentials?: readonly GitCredential[]
  /** Unix milliseconds. */
  now(): number
}

type CheckoutSource = Pick<CheckoutAction, 'repository' | 'commit' | 'depth'>

/**
 * Copies repositories into sandboxes. Each repository has a local mirror, and each requested commit stays checked out,
 * so that the next sandbox costs one copy. A sandbox sees neither mirror nor network; its copy contains the commit and
 * its ancestors only, without branches, tags or remotes.
 */
export class Checkouts {
  readonly #deps: CheckoutsDeps
  readonly #cache: BoundedCache

  constructor(deps: CheckoutsDeps) {
    this.#deps = deps
    this.#cache = new BoundedCache(deps.dir, deps.limits, () => deps.now())
  }

  /**
   * Throws RolloutError `config.invalid` for a commit that the repository does not have, `runtime.prepare-failed` if
   * the repository cannot be reached.
   */
  async upload(
    source: CheckoutSource & Pick<CheckoutAction, 'target'>,
    sandbox: Sandbox,
    signal: AbortSignal,
  ): Promise<void> {
    const name = `tree-${digest([source.repository, source.commit, source.depth ?? null])}`
    await this.#cache.using(name, async () => {
      // Another process may have evicted the entry meanwhile.
      while (!(await this.#cache.has(name))) {
        await this.#cache.exclusively(name, signal, async () => {
          if (!(await this.#cache.has(name))) await this.#checkOut(name, source, signal)
        })
      }
      await sandbox.upload(this.#cache.pathOf(name), source.target, signal)
    })
  }

  async #checkOut(name: string, { repository, commit, depth }: CheckoutSource, signal: AbortSignal): Promise<void> {
    // Throws for a repository that git may not reach, before anything is created for it.
    accessTo(repository, this.#deps.credentials ?? [])
    const mirror = `mirror-${digest([repository])}`
    const folder = this.#cache.pathOf(name)
    await rm(folder, { recursive: true, force: true })
    await this.#cache.using(mirror, async () => {
      await this.#updateMirror(mirror, { repository, commit }, signal)
      await this.#git(signal, ['init', '--quiet', ...formatOf(commit), '--template=', '--', folder])
      const history = depth == null ? [] : [`--depth=${depth}`]
      const source = `file://${this.#cache.pathOf(mirror)}`
      const fetch = ['-C', folder, 'fetch', ...FETCH, '--no-tags', ...history, '--', source, commit]
      await this.#git(signal, fetch, source)
      await this.#git(signal, ['-C', folder, 'checkout', '--quiet', '--detach', commit])
    })
    await this.#cache.keep(name)
  }

  /** Fetches from the repository only if the mirror does not have the commit. */
  async #updateMirror(
    mirror: string,
    { repository, commit }: Pick<CheckoutSource, 'repository' | 'commit'>,
    signal: AbortSignal,
  ): Promise<void> {
    const folder = this.#cache.pathOf(mirror)
    if ((await this.#cache.has(mirror)) && (await this.#hasCommit(folder, commit, signal))) return
    await this.#cache.exclusively(mirror, signal, async () => {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      await this.#git(signal, ['init', '--quiet', '--bare', ...formatOf(commit), '--template=', '--', folder])
      if (await this.#hasCommit(folder, commit, signal)) return
      const fetch = ['-C', folder, 'fetch', ...FETCH, '--prune', '--', repository]
      await this.#git(signal, [...fetch, '+refs/heads/*:refs/heads/*', '+refs/tags/*:refs/tags/*'], repository)
      if (!(await this.#hasCommit(folder, commit, signal)))
        await this.#fetchAlone(folder, { repository, commit }, signal)
      await this.#cache.keep(mirror)
    })
  }

  /** Fetches a commit that no branch or tag contains, such as of a pull request; most servers permit that. */
  async #fetchAlone(
    folder: string,
    { repository, commit }: Pick<CheckoutSource, 'repository' | 'commit'>,
    signal: AbortSignal,
  ): Promise<void> {
    const spec = `${commit}:refs/polar/${commit}`
    try {
      await this.#git(signal, ['-C', folder, 'fetch', ...FETCH, '--no-tags', '--', repository, spec], repository)
    } catch (cause) {
      signal.throwIfAborted()
      const message = `${withoutLogin(repository)} has no commit ${commit}, or it cannot be read.`
      throw new RolloutError('config.invalid', message, { cause })
    }
  }

  async #hasCommit(folder: string, commit: string, signal: AbortSignal): Promise<boolean> {
    const isFound = await succeeds(this.#git(signal, ['-C', folder, 'cat-file', '-e', `${commit}^{commit}`]))
    signal.throwIfAborted()
    return isFound
  }

  /** `remote` is the only repository that git may access. */
  async #git(signal: AbortSignal, args: readonly string[], remote?: string): Promise<string> {
    const { env, credentials = [] } = this.#deps
    return runUntrustedGit(args, { env, signal, credentials, remote })
  }
}

const FETCH = ['--quiet', '--force', '--no-write-fetch-head', '--no-auto-maintenance', '--no-recurse-submodules']

function formatOf(commit: string): string[] {
  return [`--object-format=${commit.length === 64 ? 'sha256' : 'sha1'}`]
}

function digest(parts: readonly unknown[]): string {
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 40)
}
