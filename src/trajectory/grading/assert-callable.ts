import { RolloutError } from '../../model/failure.ts'
import { shownUrl } from './post-json.ts'

/** Throws `config.invalid` for a URL that tasks may not call. */
export function assertCallable(url: URL, deps: { mayCall(url: URL): boolean }, setting: string): void {
  const reject = (problem: string) => new RolloutError('config.invalid', `${setting}: ${problem}`)
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw reject(`${shownUrl(url)} is neither http nor https. Use an http or https URL.`)
  if (url.username !== '' || url.password !== '')
    throw reject('a URL must not contain credentials. Use an environment variable of the node.')
  if (!deps.mayCall(url))
    throw reject(`${shownUrl(url)} may not be called from this node. The operator lists the allowed hosts.`)
}

/** Returns the secret that a setting names; undefined if it names none. Throws `config.invalid` if it is not set. */
export function requireSecret(
  name: string | undefined,
  deps: { secret(name: string): string | undefined },
  setting: string,
): string | undefined {
  if (name === undefined) return undefined
  const value = deps.secret(name)
  if (value !== undefined && value !== '') return value
  throw new RolloutError('config.invalid', `${setting}: this node has no secret named ${name}.`)
}
