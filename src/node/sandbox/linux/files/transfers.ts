import { spawn } from 'node:child_process'
import { createReadStream } from 'node:fs'
import { lstat, rm } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Readable, Writable } from 'node:stream'
import { onAbort } from '../../../../lib/async/until-aborted.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { CopyLimits } from '../../runtimes/runtime.ts'
import { extractTar, lstatIfThere } from './extract-tar.ts'

/** A helper program inside the sandbox, with its input and output as streams. */
export interface HelperProcess {
  stdin: Writable
  stdout: Readable
  /** Never rejects. */
  ended: Promise<{ exitCode: number; stderr: string }>
  kill(): void
}
export type StartHelper = (command: readonly [string, ...string[]]) => HelperProcess

/** Limit for a helper that hangs, for example on a file that cannot be read. */
const FILE_TIMEOUT_MS = 30_000
const MISSING = 66
const NOT_A_FILE = 65
/**
 * Messages for which GNU tar exits with 1 although the archive is complete. An overlay file system changes a directory
 * when it is read, and a server that a prepare step started may write while its files are copied.
 */
const CHANGED =
  /^[^\n]*: (?:file changed as we read it|File removed before we read it|File shrank by \d+ bytes; padding with zeros)$/

/** Creates the parent directory of the target and removes an existing target. */
const CLEAR_TARGET = 'mkdir -p -- "$(dirname -- "$1")" && rm -rf -- "$1"'

/** Handles a target folder that can be emptied but not removed, such as a workdir whose parent is not writable. */
const FILL_FIXED =
  'rm -rf -- "$1" 2>/dev/null; if [ -d "$1" ] && [ ! -L "$1" ] && [ -z "$(ls -A -- "$1")" ]; then exec tar -xpof - --strip-components=1 -C "$1"; fi; '

export async function uploadTo(start: StartHelper, source: string, target: string, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted()
  const stats = await lstat(source)
  if (stats.isFile()) {
    const mode = (stats.mode & 0o7777).toString(8)
    await writeWith(start, createReadStream(source), { path: target, mode, signal })
    return
  }
  const unpack = `${FILL_FIXED}${CLEAR_TARGET} && d=$(mktemp -d -- "$1.XXXXXX") || exit 1; tar -xpof - -C "$d" && mv -- "$d/$2" "$1"; s=$?; rm -rf -- "$d"; exit $s`
  const helper = start(['/bin/sh', '-c', unpack, 'sh', target, basename(source)])
  const packer = spawn('tar', ['-C', dirname(source), '-cf', '-', '--', basename(source)], {
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { PATH: '/usr/bin:/bin' },
    signal,
  })
  const packed = new Promise<number>((resolve) => {
    packer.once('close', (code) => resolve(code ?? 128)).once('error', () => resolve(127))
  })
  await feed(helper, packer.stdout, signal)
  if ((await packed) !== 0) throw new RolloutError('runtime.copy-failed', `Cannot read ${source} completely`)
}

export async function writeFileTo(
  start: StartHelper,
  path: string,
  data: string | Uint8Array,
  mode: number,
): Promise<void> {
  const signal = AbortSignal.timeout(FILE_TIMEOUT_MS)
  await writeWith(start, [data], { path, mode: mode.toString(8), signal })
}

async function writeWith(
  start: StartHelper,
  source: Readable | Iterable<string | Uint8Array>,
  { path, mode, signal }: { path: string; mode: string; signal: AbortSignal },
): Promise<void> {
  const script = `${CLEAR_TARGET} && umask 077 && cat > "$1" && chmod "$2" "$1"`
  await feed(start(['/bin/sh', '-c', script, 'sh', path, mode]), source, signal)
}

export async function downloadFrom(
  start: StartHelper,
  source: string,
  target: string,
  limits: CopyLimits,
  signal: AbortSignal,
): Promise<void> {
  if ((await lstatIfThere(target)) !== undefined)
    throw new RolloutError('runtime.copy-failed', `${target} already exists; choose another target`)
  const script = `[ -e "$1" ] || [ -L "$1" ] || exit ${MISSING}; cd -- "$(dirname -- "$1")" && exec tar -cf - -- "$(basename -- "$1")"`
  const helper = start(['/bin/sh', '-c', script, 'sh', source])
  helper.stdin.destroy()
  using _ = onAbort(signal, () => helper.kill())
  try {
    await extractTar(helper.stdout, target, limits)
    await check(helper, source)
  } catch (error) {
    helper.kill()
    await rm(target, { recursive: true, force: true })
    signal.throwIfAborted()
    await check(helper, source, [MISSING])
    throw error
  }
}

export async function readFileFrom(start: StartHelper, path: string, maxBytes: number): Promise<Buffer> {
  const script = `[ -e "$1" ] || exit ${MISSING}; [ -f "$1" ] || exit ${NOT_A_FILE}; exec head -c "$2" -- "$1"`
  const helper = start(['/bin/sh', '-c', script, 'sh', path, String(maxBytes + 1)])
  helper.stdin.destroy()
  using _ = onAbort(AbortSignal.timeout(FILE_TIMEOUT_MS), () => helper.kill())
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of helper.stdout as AsyncIterable<Buffer>) {
    chunks.push(chunk)
    size += chunk.length
  }
  if (size > maxBytes) throw new RolloutError('workspace.too-large', `${path} is larger than ${maxBytes} bytes`)
  await check(helper, path)
  return Buffer.concat(chunks)
}

async function feed(
  helper: HelperProcess,
  source: Readable | Iterable<string | Uint8Array>,
  signal: AbortSignal,
): Promise<void> {
  helper.stdout.resume()
  using _ = onAbort(signal, () => helper.kill())
  // A helper that cannot write closes its input; its stderr has the reason.
  await pipeline(source, helper.stdin).catch(() => {})
  await helper.ended
  signal.throwIfAborted()
  await check(helper, 'the upload')
}

/** Throws the error that a helper's exit code stands for; with `codes`, only for these codes. */
async function check(helper: HelperProcess, path: string, codes?: readonly number[]): Promise<void> {
  const { exitCode, stderr } = await helper.ended
  if (exitCode === 0 || codes?.includes(exitCode) === false) return
  if (
    exitCode === 1 &&
    stderr
      .trim()
      .split('\n')
      .every((line) => CHANGED.test(line))
  )
    return
  const reason = stderr.trim().slice(-500)
  if (exitCode === MISSING) throw new RolloutError('workspace.file-missing', `${path} does not exist in the sandbox`)
  if (exitCode === NOT_A_FILE) throw new RolloutError('workspace.unsafe-file', `${path} is not a file`)
  if (/No space left|Disk quota/.test(reason)) throw new RolloutError('runtime.out-of-disk', `${path}: ${reason}`)
  throw new RolloutError('runtime.copy-failed', `Copying ${path} failed: ${reason || `exit code ${exitCode}`}`)
}
