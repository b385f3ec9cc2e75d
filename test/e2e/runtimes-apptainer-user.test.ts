// Everything that runtimes-apptainer.test.ts shows, but as somebody without rights: each test file has a process of its own.
import { findApptainer } from '../support/apptainer.ts'

if (process.getuid?.() === 0) {
  globalThis.sharedApptainer = findApptainer({ isForOthers: true })
  process.setgroups?.([])
  process.setgid?.(1_900_001)
  process.setuid?.(1_900_001)
}
await import('./runtimes-apptainer.test.ts')
