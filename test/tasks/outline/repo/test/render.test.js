import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createAnchors } from '../lib/anchors.js'
import { insertOutline } from '../lib/insert.js'
import { renderOutline } from '../lib/render.js'

test('anchors are lower case, without punctuation, and unique', () => {
  const anchorOf = createAnchors()
  assert.deepEqual(['Hello, World!', 'Hello World', 'Ünïcode_ok'].map(anchorOf), [
    'hello-world',
    'hello-world-1',
    'ünïcode_ok',
  ])
})

test('deeper headings are indented from the highest that is shown', () => {
  const headings = [
    { level: 2, text: 'A' },
    { level: 3, text: 'B' },
    { level: 4, text: 'C' },
  ]
  assert.equal(renderOutline(headings, 3), '- [A](#a)\n  - [B](#b)\n')
})

test('what is between the markers is replaced', () => {
  assert.equal(
    insertOutline('x\n<!-- toc -->old<!-- /toc -->\ny', 'new\n'),
    'x\n<!-- toc -->\n\nnew\n\n<!-- /toc -->\ny',
  )
  assert.equal(insertOutline('x', 'new\n'), undefined)
})
