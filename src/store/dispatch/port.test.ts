import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import { openDatabase } from '../database.ts'
import { describeDispatch } from './port.contract.ts'
import { copyDatabase } from '../../../test/support/database-template.ts'

const dir = await mkdtemp(join(tmpdir(), 'polar-dispatch-'))
afterAll(() => rm(dir, { recursive: true, force: true }))
await copyDatabase(dir)

describeDispatch('PGlite', () => openDatabase({ dir }))
