import { expect, test } from 'vitest'
import { affinityOf } from '../../model/affinity.ts'
import { RuntimeSpec } from '../../model/task.ts'
import { Warmth } from './warm-images.ts'

function taskWith(runtime: Record<string, unknown>): { runtime: RuntimeSpec } {
  return { runtime: RuntimeSpec.parse(runtime) }
}

const steps = [{ type: 'exec', command: 'make' }]

test('tasks that are prepared alike have one workspace, whatever else is different', () => {
  const [image, workspace] = affinityOf(taskWith({ image: 'swe:42', prepare: steps }))
  expect(image).toBe('image:swe:42')
  expect(workspace).toMatch(/^workspace:[0-9a-f]{32}$/)
  expect(affinityOf(taskWith({ image: 'swe:42', prepare: steps, cpus: 4 }))[1]).toBe(workspace)
  expect(affinityOf(taskWith({ image: 'swe:43', prepare: steps }))[1]).not.toBe(workspace)
  expect(affinityOf(taskWith({ image: 'swe:42' }))).toEqual(['image:swe:42'])
  expect(affinityOf({ runtime: null })).toEqual([])
})

test('an image whose name cannot be a label has none', () => {
  expect(affinityOf(taskWith({ image: 'with space' }))).toEqual([])
})

test('what was used last stays warm longest', () => {
  const warmth = new Warmth()
  for (let i = 0; i < 200; i++) {
    warmth.add(taskWith({ image: `image-${i}` }))
    warmth.add(taskWith({ image: 'usual' }))
  }
  expect(warmth.keys()).toHaveLength(128)
  expect(warmth.keys().at(-1)).toBe('image:usual')
  expect(warmth.keys()).not.toContain('image:image-0')
})
