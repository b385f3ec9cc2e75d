import { plugs } from '../../lib/plug.ts'
import { bubblewrap } from './bubblewrap.ts'
import { docker } from './docker.ts'
import { local } from './local.ts'

export const runtimes = plugs([local, bubblewrap, docker])
