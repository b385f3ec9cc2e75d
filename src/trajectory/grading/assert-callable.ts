import { RolloutError } from '../../model/failure.ts'
import { place } from './post-json.ts'

/** Throws `config.invalid` for an address that a task must not make us call. */
export function assertCallable(url: URL, mayCall: (url: URL) => boolean, setting: string): void {
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new RolloutError('config.invalid', `${setting}: ${place(url)} is neither http nor https.`)
  }
  if (url.username !== '' || url.password !== '') {
    throw new RolloutError('config.invalid', `${setting}: a key belongs in the environment, not in the address.`)
  }
  if (mayCall(url)) return
  throw new RolloutError(
    'config.invalid',
    `${setting}: ${place(url)} must not be called from here. The operator lists the hosts that may be.`,
  )
}

/** The value of a secret that a setting names; throws `config.invalid` when there is none. */
export function requireSecret(name: string, secret: (name: string) => string | undefined, setting: string): string {
  const value = secret(name)
  if (value !== undefined && value !== '') return value
  throw new RolloutError('config.invalid', `${setting}: there is no secret named ${name} on this node.`)
}
