import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import { openDatabase } from '../database.ts'
import { describeDispatch } from './port.contract.ts'

const dir = await mkdtemp(join(tmpdir(), 'polar-dispatch-'))
afterAll(() => rm(dir, { recursive: true, force: true }))

describeDispatch('PGlite', () => openDatabase({ dir }))
