// Everything that escape.test.ts shows, but as somebody without rights: each test file has a process of its own.
if (process.getuid?.() === 0) {
  process.setgroups?.([])
  process.setgid?.(1_900_001)
  process.setuid?.(1_900_001)
}
await import('./escape.test.ts')
