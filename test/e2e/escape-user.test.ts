import { becomeUser } from '../support/become-user.ts'

// Everything that escape.test.ts shows, but as somebody without rights: each test file has a process of its own.
becomeUser()
await import('./escape.test.ts')
