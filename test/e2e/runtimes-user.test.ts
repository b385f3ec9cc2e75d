import { becomeUser } from '../support/become-user.ts'

// Everything that runtimes.test.ts shows, but as somebody without rights: each test file has a process of its own.
becomeUser()
await import('./runtimes.test.ts')
