import { becomeUser } from '../support/become-user.ts'

if (becomeUser('escape.test.ts')) await import('./escape.test.ts')
