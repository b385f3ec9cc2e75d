// Runs escape-apptainer.test.ts as an unprivileged user. Each test file has its own process, so no other file is affected.
import { findApptainer } from '../support/apptainer.ts'

if (process.getuid?.() === 0) {
  globalThis.sharedApptainer = findApptainer({ isForOthers: true })
  process.setgroups?.([])
  process.setgid?.(1_900_001)
  process.setuid?.(1_900_001)
}
await import('./escape-apptainer.test.ts')
