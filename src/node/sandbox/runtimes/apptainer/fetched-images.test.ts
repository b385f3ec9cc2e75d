import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { FetchedImages } from './fetched-images.ts'

let dir: string
let engine: Server
/** Id of the engine's only image. */
let imageId = 'sha256:one'

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-images-'))
  // Replaces Apptainer: creates the folder and logs its arguments.
  const script = `echo "$*" >> ${dir}/asked; shift 4; [ "$2" = docker://missing ] && { echo no such image >&2; exit 1; }; mkdir -p "$1" && echo "$2" > "$1/name"`
  await writeFile(join(dir, 'apptainer.sh'), script)
  engine = createServer((request, response) => {
    const isKnown = request.url === '/images/local:latest/json'
    response.writeHead(isKnown ? 200 : 404).end(JSON.stringify(isKnown ? { Id: imageId } : {}))
  })
  await new Promise<void>((resolve) => engine.listen(join(dir, 'engine.sock'), resolve))
})
afterEach(async () => {
  await new Promise((resolve) => engine.close(resolve))
  await rm(dir, { recursive: true, force: true })
})

function open(more: { pull?: 'never' | 'missing'; dockerSocket?: string } = {}): FetchedImages {
  const program = ['/bin/sh', join(dir, 'apptainer.sh')] as const
  return new FetchedImages({ dir, program, pull: 'missing', dockerSocket: join(dir, 'engine.sock'), ...more } as never)
}
const require = (images: FetchedImages, name: string) => images.require(name, AbortSignal.timeout(20_000))
const asked = async () => (await readFile(join(dir, 'asked'), 'utf8')).trim().split('\n')

describe('require()', () => {
  test('unpacks an image once, for concurrent callers and for later processes', async () => {
    const images = open()
    const folders = await Promise.all([1, 2, 3].map(() => require(images, 'docker://python:3.12')))
    expect(new Set(folders).size).toBe(1)
    expect(await require(open(), 'docker://python:3.12')).toBe(folders[0])
    expect(await asked()).toEqual([
      expect.stringMatching(/^--silent build --disable-cache --sandbox \S+ docker:\/\/python:3\.12$/),
    ])
    expect(await readFile(join(folders[0]!, 'name'), 'utf8')).toBe('docker://python:3.12\n')
  })

  test('unpacks a rebuilt image of the local engine again', async () => {
    const images = open()
    const first = await require(images, 'docker-daemon:local:latest')
    expect(await require(images, 'docker-daemon:local:latest')).toBe(first)
    imageId = 'sha256:two'
    expect(await require(images, 'docker-daemon:local:latest')).not.toBe(first)
    expect(await asked()).toHaveLength(2)
  })

  test('an image that cannot be fetched is image-missing, and leaves no files', async () => {
    await expect(require(open(), 'docker://missing')).rejects.toMatchObject({
      code: 'runtime.image-missing',
      message: expect.stringContaining('no such image') as unknown,
    })
    expect(await readdir(join(dir, 'images'))).toEqual([])
    await expect(require(open(), 'docker-daemon:other:latest')).rejects.toThrow('is not in the engine')
    await expect(require(open({ dockerSocket: join(dir, 'nothing') }), 'docker-daemon:local:latest')).rejects.toThrow(
      'does not respond',
    )
    await expect(require(open({ pull: 'never' }), 'docker://python:3.12')).rejects.toThrow(
      'set runtime.pull to missing',
    )
  })
})
