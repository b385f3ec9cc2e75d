import { findApptainer } from '../support/apptainer.ts'
import { becomeUser } from '../support/become-user.ts'

if (process.getuid?.() === 0) globalThis.sharedApptainer = findApptainer({ isForOthers: true })
if (becomeUser('escape-apptainer.test.ts')) await import('./escape-apptainer.test.ts')
