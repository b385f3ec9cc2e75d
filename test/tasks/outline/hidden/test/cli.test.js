// The command line, from outside: what is tested never runs in this process.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { test } from 'node:test'

// Whoever keeps the tests apart from the program says where; from then on nobody can look the answers up.
if (process.env.HIDE_TESTS) rmSync(process.env.HIDE_TESTS, { recursive: true, force: true })

function outline(lines, ...args) {
  const { status, stdout } = spawnSync(process.execPath, ['bin/outline.js', ...args], {
    input: lines.join('\n'),
    encoding: 'utf8',
    timeout: 30_000,
  })
  return { status, lines: stdout.split('\n').slice(0, -1) }
}

test('headings become nested links', () => {
  const { status, lines } = outline(['Title', '=====', '', '## A & B', '### C', '## A & B'])
  assert.equal(status, 0)
  assert.deepEqual(lines, ['- [Title](#title)', '  - [A & B](#a--b)', '    - [C](#c)', '  - [A & B](#a--b-1)'])
})

test('depth leaves out what is deeper', () => {
  assert.deepEqual(outline(['# A', '## B', '### C'], '--depth', '2').lines, ['- [A](#a)', '  - [B](#b)'])
  assert.equal(outline(['# A'], '--depth', '9').status, 2)
})

test('insert replaces what is between the markers', () => {
  assert.deepEqual(outline(['# A', '<!-- toc -->', 'old', '<!-- /toc -->', 'end', ''], '--insert').lines, [
    '# A',
    '<!-- toc -->',
    '',
    '- [A](#a)',
    '',
    '<!-- /toc -->',
    'end',
  ])
})

test('lines in a fence of backticks are no headings', () => {
  assert.deepEqual(outline(['# A', '```python title="x"', '# no', 'no', '---', '```', '# B']).lines, [
    '- [A](#a)',
    '- [B](#b)',
  ])
})

test('lines in a fence of tildes are no headings', () => {
  assert.deepEqual(outline(['~~~ `js`', '# no', '```', '# nor this', '~~~~', '# A']).lines, ['- [A](#a)'])
})

test('a fence ends with as many or more of its own', () => {
  assert.deepEqual(outline(['`````', '```', '# no', '``` ', '`````` x', '# no', '  ``````', '# A']).lines, [
    '- [A](#a)',
  ])
})

test('a fence that is not ended lasts to the end', () => {
  assert.deepEqual(outline(['# A', '   ~~~', '# no', '    ~~~', '## no']).lines, ['- [A](#a)'])
})

test('what looks like a fence but is none hides nothing', () => {
  assert.deepEqual(outline(['``` a ` b', '# A', '    ```', '# B', '``', '# C']).lines, [
    '- [A](#a)',
    '- [B](#b)',
    '- [C](#c)',
  ])
})

test('insert leaves fences as they are', () => {
  const file = ['<!-- toc -->', '<!-- /toc -->', '# A', '```', '# no', '```']
  assert.deepEqual(outline([...file, ''], '--insert').lines, [
    '<!-- toc -->',
    '',
    '- [A](#a)',
    '',
    '<!-- /toc -->',
    ...file.slice(2),
  ])
})
