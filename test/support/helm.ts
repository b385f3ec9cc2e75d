import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const root = fileURLToPath(new URL('../..', import.meta.url))
const VERSION = 'v3.19.0'

/** Returns Helm, compiled once and cached, or the reason why there is none. No registry that we use has a binary. */
export async function findHelm(): Promise<{ helm: string } | { helm: undefined; reason: string }> {
  const place = join(root, '.polar', `helm-${VERSION}`)
  const helm = join(place, 'helm')
  if (existsSync(helm)) return { helm }
  const cache = join(place, 'cache')
  mkdirSync(cache, { recursive: true })
  const env = { ...process.env, GOBIN: place, GOPATH: cache, GOCACHE: join(cache, 'build'), GOFLAGS: '-modcacherw' }
  const args = ['install', '-ldflags=-s -w', `helm.sh/helm/v3/cmd/helm@${VERSION}`]
  try {
    await promisify(execFile)('go', args, { env, timeout: 900_000 })
    return { helm }
  } catch (error) {
    return { helm: undefined, reason: `go cannot make helm: ${String(error).trim().slice(-300)}` }
  } finally {
    rmSync(cache, { recursive: true, force: true })
  }
}
