import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findHeadings } from '../lib/headings.js'

test('headings with hashes', () => {
  assert.deepEqual(findHeadings('# One\ntext\n### Three ###\n#no\n'), [
    { level: 1, text: 'One' },
    { level: 3, text: 'Three' },
  ])
})

test('headings with a line below', () => {
  assert.deepEqual(findHeadings('One\n===\n\nTwo\n---\n\n- item\n---\n'), [
    { level: 1, text: 'One' },
    { level: 2, text: 'Two' },
  ])
})

test('marks are left out', () => {
  assert.deepEqual(findHeadings('## The `code` of [us](http://x) *now*\n'), [{ level: 2, text: 'The code of us now' }])
})
