import { becomeUser } from '../support/become-user.ts'

// Runs runtimes.test.ts as a user without privileges. Each test file has its own process.
becomeUser()
await import('./runtimes.test.ts')
