import { becomeUser } from '../support/become-user.ts'

if (becomeUser('runtimes.test.ts')) await import('./runtimes.test.ts')
