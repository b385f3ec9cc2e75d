import { RolloutError } from '../../model/failure.ts'
import { shownUrl } from './post-json.ts'

/** Throws `config.invalid` for a URL that tasks may not call. */
export function assertCallable(url: URL, mayCall: (url: URL) => boolean, setting: string): void {
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new RolloutError(
      'config.invalid',
      `${setting}: ${shownUrl(url)} is neither http nor https. Use an http or https URL.`,
    )
  }
  if (url.username !== '' || url.password !== '') {
    throw new RolloutError(
      'config.invalid',
      `${setting}: a URL must not contain credentials. Use an environment variable of the node.`,
    )
  }
  if (mayCall(url)) return
  throw new RolloutError(
    'config.invalid',
    `${setting}: ${shownUrl(url)} may not be called from this node. The operator lists the allowed hosts.`,
  )
}

/** Returns the secret that a setting names. Throws `config.invalid` if it is not set. */
export function requireSecret(name: string, secret: (name: string) => string | undefined, setting: string): string {
  const value = secret(name)
  if (value !== undefined && value !== '') return value
  throw new RolloutError('config.invalid', `${setting}: this node has no secret named ${name}.`)
}
