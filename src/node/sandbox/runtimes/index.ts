import { plugs } from '../../../lib/plug.ts'
import { apptainer } from './apptainer.ts'
import { bubblewrap } from './bubblewrap.ts'
import { docker } from './docker.ts'
import { kubernetes } from './kubernetes.ts'
import { local } from './local.ts'

export const runtimes = plugs([local, bubblewrap, docker, apptainer, kubernetes])
