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

const OTHERS_READ_WRITE = 0o006

/** Loads and validates the certificate and its key; throws `config.invalid` with what to do. */
export async function loadTls({ certFile, keyFile }: TlsFiles): Promise<TlsMaterial> {
  const [cert, key] = await Promise.all([read(certFile, 'certificate'), read(keyFile, 'key')])
  const { mode } = await stat(keyFile)
  if ((mode & OTHERS_READ_WRITE) !== 0) {
    throw invalid(`the key ${keyFile} is readable or writable by every user of this machine; run chmod 600 on it`)
  }
  try {
    createSecureContext({ cert, key })
  } catch (error) {
    throw invalid(
      `${certFile} and ${keyFile} are not a certificate and its key in PEM format (${describeError(error)})`,
      error,
    )
  }
  const { validTo } = new X509Certificate(cert)
  if (new Date(validTo).getTime() < Date.now()) throw invalid(`the certificate ${certFile} expired on ${validTo}`)
  return { cert, key }
}

async function read(path: string, kind: string): Promise<Buffer> {
  try {
    return await readFile(path)
  } catch (error) {
    throw invalid(`the ${kind} ${path} cannot be read: ${describeError(error)}`, error)
  }
}

function invalid(problem: string, cause?: unknown): RolloutError {
  return new RolloutError('config.invalid', `TLS: ${problem}.`, { cause })
}
