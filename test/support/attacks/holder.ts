import { expect } from 'vitest'
import type { RunningSession } from '../../../src/node/node.ts'
import type { AttackRange } from './attack-range.ts'

/** Numbers of the system calls `inotify_init1` and `shmget`. */
export const CALLS = process.arch === 'arm64' ? { inotify: 26, shmget: 194 } : { inotify: 294, shmget: 29 }
/** Folders that sandboxes might share. */
export const PLACES = '/tmp /var/tmp /dev/shm ~ /polar/session /run /workspace'

/** Writes marks, holds all resources that it can get, then prints its key. Runs until it is cancelled. */
const SCRIPT = `
for d in ${PLACES}; do echo attack-mark > $d/attack-mark; done 2> /dev/null
perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, pack("Sa*", 1, "\\0attack-socket")); listen(S, 5);
socket(T, PF_INET, SOCK_STREAM, 0); bind(T, sockaddr_in(9999, inet_aton("0.0.0.0"))); listen(T, 5);
syscall(${CALLS.shmget}, 0x7061, 4096, 0x200 | 0666); for (1..300) { last if syscall(${CALLS.inotify}, 0) == -1 }
open(H, ">", "/tmp/holding"); close H; $0 = "attack-process"; sleep 600' &
until [ -e /tmp/holding ]; do sleep 0.05; done
ask "holder-key=$OPENAI_API_KEY=" > /dev/null
wait`

export interface Holder {
  session: RunningSession
  /** Its own key, as if it had leaked. */
  key: string
}

/** Another session of the same node, which runs and holds resources. */
export function holderOf(range: AttackRange): Promise<Holder> {
  return range.once('holder', async () => {
    const session = range.submit(SCRIPT, { timeout_seconds: 600 })
    range.defer(async () => {
      session.cancel('the attack is over')
      await session.outcome
    })
    await expect.poll(() => range.engine.textsWith('holder-key=').length).toBe(1)
    return { session, key: /holder-key=([^="]+)=/.exec(range.engine.textsWith('holder-key=')[0]!)![1]! }
  })
}
