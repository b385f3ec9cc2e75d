import { createInterface } from 'node:readline'
import * as z from 'zod'
import { orAborted } from '../../../../lib/async/until-aborted.ts'
import { parseJsonObject } from '../../../../lib/json/json-text.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { ContainerEngineError, ignoreStatus, type ContainerEngine } from './container-engine.ts'

const Image = z.looseObject({
  Id: z.string(),
  Config: z.looseObject({ Env: z.array(z.string()).nullish(), User: z.string().nullish() }).nullish(),
})
export type Image = z.infer<typeof Image>

export type PullPolicy = 'never' | 'missing' | 'always'

export interface RegistryLogin {
  /** As in the image's name: `ghcr.io`, `localhost:5000`; `docker.io` for names without a registry. */
  registry: string
  username: string
  password: string
}

/** Finds, pulls and removes images of an engine. */
export class Images {
  readonly #engine: ContainerEngine
  readonly #pull: PullPolicy
  readonly #logins: readonly RegistryLogin[]
  readonly #pulling = new Map<string, Promise<void>>()

  constructor(engine: ContainerEngine, options: { pull: PullPolicy; logins: readonly RegistryLogin[] }) {
    this.#engine = engine
    this.#pull = options.pull
    this.#logins = options.logins
  }

  async find(name: string): Promise<Image | undefined> {
    const answer = await this.#engine.call('GET', `/images/${encodeURI(name)}/json`).catch(ignoreStatus(404))
    return answer === undefined ? undefined : Image.parse(answer)
  }

  /** Returns false if the image is in use. */
  async remove(name: string): Promise<boolean> {
    try {
      await this.#engine.call('DELETE', `/images/${encodeURI(name)}`).catch(ignoreStatus(404))
      return true
    } catch (error) {
      if (error instanceof ContainerEngineError && error.status === 409) return false
      throw error
    }
  }

  /** Returns an image, and pulls it first if the policy requires it. */
  async require(name: string, signal: AbortSignal): Promise<Image> {
    const here = this.#pull === 'always' ? undefined : await this.find(name)
    if (here !== undefined) return here
    if (this.#pull !== 'never') await this.#fetch(name, signal)
    const found = await this.find(name)
    if (found !== undefined) return found
    const advice = this.#pull === 'never' ? 'load it, or set runtime.pull to missing' : 'check its name'
    throw new RolloutError('runtime.image-missing', `Image ${name} is not on this node; ${advice}`)
  }

  /** Concurrent callers share one download; a caller that aborts does not stop it. */
  #fetch(name: string, signal: AbortSignal): Promise<void> {
    const pulling = this.#pulling.get(name) ?? this.#download(name).finally(() => this.#pulling.delete(name))
    this.#pulling.set(name, pulling)
    return orAborted(pulling, signal)
  }

  async #download(name: string): Promise<void> {
    const login = this.#logins.find(({ registry }) => registry === registryOf(name))
    const headers: Record<string, string> =
      login === undefined ? {} : { 'x-registry-auth': Buffer.from(JSON.stringify(toAuth(login))).toString('base64url') }
    try {
      const { body } = await this.#engine.open('POST', '/images/create', { query: { fromImage: name }, headers })
      // The status precedes the download; an error is the last line.
      for await (const line of createInterface({ input: body })) {
        const error = parseJsonObject(line)?.['error']
        if (typeof error === 'string') throw new ContainerEngineError(500, error)
      }
    } catch (cause) {
      if (!(cause instanceof ContainerEngineError)) throw cause
      throw new RolloutError(
        'runtime.image-missing',
        `Image ${name} is not on this node and cannot be pulled: ${cause.message}; log in with runtime.logins, or load it and set runtime.pull to never`,
        { cause },
      )
    }
  }
}

function toAuth({ registry, username, password }: RegistryLogin): object {
  return { username, password, serveraddress: registry }
}

/** The first part of a name is a registry if it looks like a host: with a dot, a port, or `localhost`. */
export function registryOf(name: string): string {
  const first = name.includes('/') ? name.slice(0, name.indexOf('/')) : ''
  return /[.:]/.test(first) || first === 'localhost' ? first : 'docker.io'
}
