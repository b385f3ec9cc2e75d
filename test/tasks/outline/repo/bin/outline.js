#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { insertOutline } from '../lib/insert.js'
import { findHeadings } from '../lib/headings.js'
import { renderOutline } from '../lib/render.js'

const USAGE = 'usage: node bin/outline.js [--depth N] [--insert] < FILE'

function main() {
  let options
  try {
    options = parseArgs({ options: { depth: { type: 'string', default: '6' }, insert: { type: 'boolean' } } }).values
  } catch (error) {
    return fail(`${error.message}\n${USAGE}`, 2)
  }
  if (!/^[1-6]$/.test(options.depth)) return fail(`--depth must be 1 to 6, not ${options.depth}`, 2)
  const text = readFileSync(0, 'utf8')
  const outline = renderOutline(findHeadings(text), Number(options.depth))
  if (!options.insert) {
    process.stdout.write(outline)
    return
  }
  const inserted = insertOutline(text, outline)
  if (inserted === undefined) return fail('the file has no <!-- toc --> and <!-- /toc -->', 1)
  process.stdout.write(inserted)
}

function fail(message, code) {
  process.stderr.write(`${message}\n`)
  process.exitCode = code
}

main()
