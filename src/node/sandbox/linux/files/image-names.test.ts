import { expect, test } from 'vitest'
import { isImageName, localImageName } from './image-names.ts'

test.each([
  ['docker://python:3.12', true, undefined],
  ['oras://ghcr.io/lab/image:1', true, undefined],
  ['docker-daemon:polar-localhost-calculator:latest', true, 'polar-localhost-calculator:latest'],
  ['/images/a.sif', false, undefined],
  ['images/docker-daemon:a', false, undefined],
  ['docker-archive:/etc/shadow', false, undefined],
  ['oci:/etc', false, undefined],
  ['docker://', false, undefined],
  ['docker-daemon:', false, undefined],
  ['docker-daemon:--help', false, undefined],
  ['docker://a b', false, undefined],
])('isImageName(%j) is %s, and in the local engine it is %s', (image, isName, local) => {
  expect(isImageName(image)).toBe(isName)
  expect(localImageName(image)).toBe(local)
})
