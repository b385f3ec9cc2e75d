import { spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { copyFile, mkdir, mkdtempDisposable, open, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { uploadRoutes } from '../src/api/routes/upload-routes.ts'
import { createClientOf } from '../src/client/client.ts'
import { uploadFile } from '../src/client/upload.ts'
import type { BenchOptions } from './run.ts'
import { cpuMsOf } from './support/child.ts'
import { percentile } from './support/stats.ts'
import { printTable } from './support/table.ts'

const MIB = 2 ** 20
const PART_BYTES = 8 * MIB
const SMALL_BYTES = 64 * 1024
const SMALL_AT_ONCE = 16

interface Rate {
  uploaded: number
  copied: number
  /** Processor milliseconds of the server for each MB, or file: independent of other work of the machine. */
  cpuMs: number
}

interface UploadBench {
  /** MB/s of one long file, of four at once, and files of 64 KiB a second. */
  one: Rate
  four: Rate
  small: Rate
}

/** Measures uploads over HTTP, hashed and on disk before the answer, compared with `cp` and `fsync` of the same bytes. */
export async function benchUpload({ long }: BenchOptions): Promise<void> {
  await using scratch = await mkdtempDisposable(join(tmpdir(), 'polar-bench-'))
  const program = fileURLToPath(new URL('../test/support/file-store-process.ts', import.meta.url))
  const server = spawn(process.execPath, [program, join(scratch.path, 'files')], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    const [url] = (await once(createInterface({ input: server.stdout }), 'line')) as [string]
    print(await measure(scratch.path, url, server.pid ?? 0, long))
  } finally {
    server.kill()
    await once(server, 'exit')
  }
}

async function measure(dir: string, url: string, pid: number, long: boolean): Promise<UploadBench> {
  const client = createClientOf(uploadRoutes, { baseUrl: url })
  const source = join(dir, 'source')
  const small = join(dir, 'small')
  const bytes = (long ? 1024 : 128) * MIB
  await writeRandom(source, bytes)
  await writeRandom(small, SMALL_BYTES)
  const digest = await digestOf(source)
  const smallDigest = await digestOf(small)
  let count = 0

  const upload = async (path: string, length: number, of: string): Promise<void> => {
    const file = await open(path)
    count += 1
    await uploadFile(client, {
      nodeId: 'bench',
      sessionId: `ses_${count}`,
      attempt: 1,
      bytes: length,
      digest: of,
      partBytes: PART_BYTES,
      read: async (offset, size) => {
        const { buffer } = await file.read(new Uint8Array(size), 0, size, offset)
        return buffer
      },
    })
    await file.close()
  }
  const copy = async (path: string): Promise<void> => {
    count += 1
    const target = join(dir, `copies`, `${count}`)
    await mkdir(dirname(target), { recursive: true })
    await copyFile(path, target)
    await sync(target)
    await sync(dirname(target))
    await rm(target)
  }

  const smalls = long ? 2000 : 400
  const megabytes = bytes / 1e6
  // One directly after the other, so that other work of the disk is similar for both.
  const rateOf = async (work: (one: 'upload' | 'copy') => Promise<void>, amount: number): Promise<Rate> => {
    const uploads: number[] = []
    const copies: number[] = []
    const cpus: number[] = []
    for (let round = 0; round < 3; round++) {
      const before = (await cpuMsOf(pid)) ?? Number.NaN
      uploads.push(amount / (await secondsOf(() => work('upload'))))
      cpus.push((((await cpuMsOf(pid)) ?? Number.NaN) - before) / amount)
      copies.push(amount / (await secondsOf(() => work('copy'))))
    }
    return { uploaded: percentile(uploads, 50), copied: percentile(copies, 50), cpuMs: percentile(cpus, 50) }
  }
  const large = (one: 'upload' | 'copy'): Promise<void> =>
    one === 'upload' ? upload(source, bytes, digest) : copy(source)
  const little = (one: 'upload' | 'copy'): Promise<void> =>
    one === 'upload' ? upload(small, SMALL_BYTES, smallDigest) : copy(small)
  await upload(small, SMALL_BYTES, smallDigest)
  return {
    one: await rateOf(large, megabytes),
    four: await rateOf(
      async (one) => void (await Promise.all(Array.from({ length: 4 }, () => large(one)))),
      4 * megabytes,
    ),
    small: await rateOf((one) => atOnce(smalls, () => little(one)), smalls),
  }
}

async function atOnce(total: number, work: () => Promise<void>): Promise<void> {
  let left = total
  const lane = async (): Promise<void> => {
    while (left-- > 0) await work()
  }
  await Promise.all(Array.from({ length: SMALL_AT_ONCE }, lane))
}

async function writeRandom(path: string, bytes: number): Promise<void> {
  const file = await open(path, 'w')
  for (let at = 0; at < bytes; at += MIB) await file.write(randomBytes(Math.min(MIB, bytes - at)))
  await file.sync()
  await file.close()
}

async function digestOf(path: string): Promise<string> {
  const file = await open(path)
  const hash = createHash('sha256')
  for await (const chunk of file.createReadStream()) hash.update(chunk as Buffer)
  return `sha256:${hash.digest('hex')}`
}

async function sync(path: string): Promise<void> {
  await using file = await open(path)
  await file.sync()
}

async function secondsOf(work: () => Promise<void>): Promise<number> {
  const start = performance.now()
  await work()
  return (performance.now() - start) / 1000
}

function print({ one, four, small }: UploadBench): void {
  const row = (what: string, { uploaded, copied, cpuMs }: Rate): string[] => [
    what,
    uploaded.toFixed(0),
    copied.toFixed(0),
    `${((100 * uploaded) / copied).toFixed(0)} %`,
    cpuMs.toFixed(1),
  ]
  printTable([
    ['', 'uploaded', 'cp and fsync', 'ratio', 'CPU ms each'],
    row('one file, parts of 8 MiB, MB/s', one),
    row('four at once, MB/s', four),
    row('64 KiB each, 16 at once, files/s', small),
  ])
}
