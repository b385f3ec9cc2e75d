// Runs runtimes-apptainer.test.ts as a user without privileges. Each test file has its own process.
import { findApptainer } from '../support/apptainer.ts'

if (process.getuid?.() === 0) {
  globalThis.sharedApptainer = findApptainer({ isForOthers: true })
  process.setgroups?.([])
  process.setgid?.(1_900_001)
  process.setuid?.(1_900_001)
}
await import('./runtimes-apptainer.test.ts')
