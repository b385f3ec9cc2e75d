import { becomeUser } from '../support/become-user.ts'

// Runs escape.test.ts as an unprivileged user. Each test file has its own process, so no other file is affected.
becomeUser()
await import('./escape.test.ts')
