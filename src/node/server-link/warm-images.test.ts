import { expect, test } from 'vitest'
import { affinityOf } from '../../model/affinity.ts'
import { RuntimeSpec } from '../../model/task.ts'
import { WarmImages } from './warm-images.ts'

function taskWith(runtime: Record<string, unknown>): { runtime: RuntimeSpec } {
  return { runtime: RuntimeSpec.parse(runtime) }
}

const steps = [{ type: 'exec', command: 'make' }]

test('affinityOf() returns the same workspace key for tasks with the same image and preparation', () => {
  const [image, workspace] = affinityOf(taskWith({ image: 'swe:42', prepare: steps }))
  expect(image).toBe('image:swe:42')
  expect(workspace).toMatch(/^workspace:[0-9a-f]{32}$/)
  expect(affinityOf(taskWith({ image: 'swe:42', prepare: steps, cpus: 4 }))[1]).toBe(workspace)
  expect(affinityOf(taskWith({ image: 'swe:43', prepare: steps }))[1]).not.toBe(workspace)
  expect(affinityOf(taskWith({ image: 'swe:42' }))).toEqual(['image:swe:42'])
  expect(affinityOf({ runtime: null })).toEqual([])
})

test('affinityOf() returns no key for an image whose name is not a valid label', () => {
  expect(affinityOf(taskWith({ image: 'with space' }))).toEqual([])
})

test('WarmImages keeps the 128 keys that were used last', () => {
  const images = new WarmImages()
  for (let i = 0; i < 200; i++) {
    images.add(taskWith({ image: `image-${i}` }))
    images.add(taskWith({ image: 'usual' }))
  }
  expect(images.keys()).toHaveLength(128)
  expect(images.keys().at(-1)).toBe('image:usual')
  expect(images.keys()).not.toContain('image:image-0')
})
