import { bubblewrapConfig } from '../support/bubblewrap.ts'
import { describeAttacks } from '../support/attacks/describe-attacks.ts'

const { kind, ...settings } = bubblewrapConfig

describeAttacks({ name: 'bubblewrap', kind, settings })
