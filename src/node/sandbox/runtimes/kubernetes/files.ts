import { lstat, readdir, readlink } from 'node:fs/promises'
import { join } from 'node:path'
import { basename } from 'node:path/posix'
import { packTree, TAR_END, tarHeader, tarPadding } from '../../../../lib/archive/tar-writer.ts'
import { onAbort } from '../../../../lib/async/until-aborted.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { lstatIfThere } from '../../linux/files/extract-tar.ts'
import { downloadFrom, readFileFrom, type HelperProcess } from '../../linux/files/transfers.ts'
import type { CopyLimits } from '../runtime.ts'

const FILE_TIMEOUT_MS = 30_000
const OWNER = { uid: 0, gid: 0 }

/**
 * Unpacks beside the target and renames the result. The input has no visible end, so its length is an argument. An
 * existing target is replaced; links are not followed.
 */
const UNPACK = `mkdir -p -- "$(dirname -- "$1")" && rm -rf -- "$1" && d=$(mktemp -d -- "$1.XXXXXX") || exit 1
head -c "$3" | tar -xpof - -C "$d" && mv -- "$d/$2" "$1"; s=$?; rm -rf -- "$d"; exit $s`

/** Accesses a pod's files with programs of its image: a shell, `tar`, `head`. Treats their output as hostile. */
export class PodFiles {
  readonly #start: (command: readonly string[]) => HelperProcess

  constructor(start: (command: readonly string[]) => HelperProcess) {
    this.#start = start
  }

  async upload(source: string, target: string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if ((await lstatIfThere(source)) === undefined)
      throw new RolloutError('runtime.copy-failed', `${source} cannot be uploaded: it does not exist`)
    const name = basename(target)
    const size = await measureTree(source, name)
    await this.#send(packTree(source, name, OWNER), size, target, signal)
  }

  async writeFile(path: string, data: string | Uint8Array, mode: number, modifiedAt: number): Promise<void> {
    const content = Buffer.from(data)
    const { length: size } = content
    const header = tarHeader({ name: basename(path), kind: 'file', mode, size, modifiedAt, ...OWNER })
    const parts = [header, content, tarPadding(size)]
    const total = parts.reduce((sum, { length }) => sum + length, 0)
    await this.#send(parts, total, path, AbortSignal.timeout(FILE_TIMEOUT_MS))
  }

  async download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    await downloadFrom(this.#start, source, target, limits, signal)
  }

  async readFile(path: string, maxBytes: number): Promise<Buffer> {
    return readFileFrom(this.#start, path, maxBytes)
  }

  async #send(
    entries: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    size: number,
    target: string,
    signal: AbortSignal,
  ): Promise<void> {
    const total = size + TAR_END.length
    const helper = this.#start(['/bin/sh', '-c', UNPACK, 'sh', target, basename(target), String(total)])
    helper.stdout.resume()
    using _ = onAbort(signal, () => helper.kill())
    try {
      let sent = 0
      for await (const chunk of entries) {
        sent += chunk.length
        if (!(await write(helper, chunk))) break
      }
      if (!helper.stdin.destroyed && sent !== size)
        throw new RolloutError('runtime.copy-failed', `${target} changed while it was read`)
      await write(helper, TAR_END)
      const { exitCode, stderr } = await helper.ended
      signal.throwIfAborted()
      if (exitCode !== 0) throw toFailure(target, exitCode, stderr)
    } finally {
      helper.kill()
    }
  }
}

/** Returns false if the input is closed. */
function write({ stdin }: HelperProcess, chunk: Uint8Array): Promise<boolean> {
  if (stdin.destroyed) return Promise.resolve(false)
  return new Promise((resolve) => {
    const closed = () => resolve(false)
    stdin.once('close', closed)
    stdin.write(chunk, (error) => {
      stdin.off('close', closed)
      resolve(error == null)
    })
  })
}

/** Returns the length of `packTree`'s output, unless the tree changes meanwhile. */
async function measureTree(source: string, name: string): Promise<number> {
  const stats = await lstat(source)
  const entry = { name, mode: 0, ...OWNER }
  if (stats.isSymbolicLink()) return tarHeader({ ...entry, kind: 'symlink', target: await readlink(source) }).length
  if (stats.isFile())
    return tarHeader({ ...entry, kind: 'file', size: stats.size }).length + stats.size + tarPadding(stats.size).length
  if (!stats.isDirectory()) return 0
  let total = tarHeader({ ...entry, name: `${name}/`, kind: 'directory' }).length
  for (const child of await readdir(source)) total += await measureTree(join(source, child), `${name}/${child}`)
  return total
}

function toFailure(path: string, exitCode: number, stderr: string): RolloutError {
  const reason = stderr.trim().slice(-500)
  if (/No space left|Disk quota/.test(reason)) return new RolloutError('runtime.out-of-disk', `${path}: ${reason}`)
  return new RolloutError('runtime.copy-failed', `Copying ${path} failed: ${reason || `exit code ${exitCode}`}`)
}
