import { X509Certificate } from 'node:crypto'
import { readFile, stat } from 'node:fs/promises'
import { createSecureContext } from 'node:tls'
import { describeError } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { TlsFiles } from './listen.ts'

export interface TlsMaterial {
  cert: Buffer
  key: Buffer
}

const BY_OTHERS = 0o006

/** The certificate and its key, fit to be used; throws `config.invalid` with what to do where they are not. */
export async function loadTls({ certFile, keyFile }: TlsFiles): Promise<TlsMaterial> {
  const [cert, key] = await Promise.all([read(certFile, 'certificate'), read(keyFile, 'key')])
  const { mode } = await stat(keyFile)
  if ((mode & BY_OTHERS) !== 0) {
    throw invalid(`the key ${keyFile} can be read or written by everybody on this machine; chmod 600 it`)
  }
  try {
    createSecureContext({ cert, key })
  } catch (error) {
    throw invalid(`${certFile} and ${keyFile} are no certificate with its key in PEM (${describeError(error)})`, error)
  }
  const { validTo } = new X509Certificate(cert)
  if (new Date(validTo).getTime() < Date.now()) throw invalid(`the certificate ${certFile} expired on ${validTo}`)
  return { cert, key }
}

async function read(path: string, what: string): Promise<Buffer> {
  try {
    return await readFile(path)
  } catch (error) {
    throw invalid(`the ${what} ${path} cannot be read: ${describeError(error)}`, error)
  }
}

function invalid(problem: string, cause?: unknown): RolloutError {
  return new RolloutError('config.invalid', `TLS: ${problem}.`, cause === undefined ? {} : { cause })
}
