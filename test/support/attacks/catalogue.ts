import type { Attack } from './attack.ts'
import { socketAttacks } from './sandbox-socket.ts'
import { machineAttacks } from './machine.ts'
import { callAttacks } from './model-calls.ts'
import { neighbourAttacks } from './neighbours.ts'
import { oddRequestAttacks } from './odd-requests.ts'
import { raceAttacks } from './races.ts'
import { choiceAttacks } from './reward-choice.ts'
import { graderAttacks } from './reward-grader.ts'
import { linkAttacks } from './reward-links.ts'
import { outputAttacks } from './reward-outputs.ts'
import { repositoryAttacks } from './reward-repository.ts'
import { serviceAttacks } from './reward-services.ts'

/** Every attack of the suite, in the order of the table in the documentation. */
export const attacks: readonly Attack[] = [
  ...linkAttacks,
  ...graderAttacks,
  ...choiceAttacks,
  ...outputAttacks,
  ...repositoryAttacks,
  ...serviceAttacks,
  ...oddRequestAttacks,
  ...raceAttacks,
  ...callAttacks,
  ...socketAttacks,
  ...neighbourAttacks,
  ...machineAttacks,
]
