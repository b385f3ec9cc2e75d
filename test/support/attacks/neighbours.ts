import { readdirSync, readFileSync } from 'node:fs'
import { expect } from 'vitest'
import type { Attack } from './attack.ts'
import type { AttackRange, EndedSession } from './attack-range.ts'
import { expectGraded } from './expectations.ts'
import { CALLS, holderOf, PLACES } from './holder.ts'

/** Searches for files and resources of another session; prints sections. */
const SEARCH = `ask one > /dev/null
mark shared-folders; ls -A ${PLACES} 2>/dev/null | grep attack-mark; grep -rls attack-mark ${PLACES} 2>/dev/null
mark shared-sockets; grep attack-socket /proc/net/unix
perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); print connect(S, pack("Sa*", 1, "\\0attack-socket")) ? "connected\\n" : ""'
perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0); print connect(S, sockaddr_in(9999, inet_aton("127.0.0.1"))) ? "connected\\n" : ""'
perl -e 'print syscall(${CALLS.shmget}, 0x7061, 4096, 0666) == -1 ? "" : "attached\\n"'
mark inotify-instances; perl -e 'print syscall(${CALLS.inotify}, 0) == -1 ? "refused: $!" : "made"'
mark processes; name=attack; ps -e -o args= | grep "$name-process" | grep -v grep; kill -9 $(pgrep -f "$name-process") 2>/dev/null
mark end`

interface Search {
  /** Output while the other session held its resources. */
  beside: EndedSession
  /** Output after the other session was removed. */
  after: EndedSession
}

async function search(range: AttackRange): Promise<Search> {
  const { session: holder } = await holderOf(range)
  const besideHolder = await range.run(SEARCH)
  expect(holder.status).toBe('RUNNING')
  holder.cancel('the attack is over')
  await holder.outcome
  return { beside: besideHolder, after: await range.run(SEARCH) }
}

/** Containers of an engine have the same user, unless each has its own user namespace. */
function sharesUsers({ options }: AttackRange): string | undefined {
  if (options.kind !== 'docker' || options.settings['userNamespace'] === 'auto') return undefined
  return 'containers share their user, and its limits, unless `userNamespace` is `auto`'
}

function finds(
  id: string,
  title: string,
  section: string,
  expected: string,
  defence: Attack['defence'],
  whyNot?: Attack['whyNot'],
): Attack {
  return {
    id,
    title,
    defence,
    target: 'neighbour',
    ...(whyNot === undefined ? {} : { whyNot }),
    async run(range) {
      const { beside, after } = await range.once('neighbours', () => search(range))
      for (const session of [beside, after]) {
        expect(session.stdout).toContain('@@ end')
        expect(session.section(section)).toBe(expected)
      }
    },
  }
}

const INNOCENT = {
  script: 'ask one > /dev/null; for i in $(seq 20); do echo $i; done > work; ask two > /dev/null',
  more: { evaluator: { strategy: 'command', config: { command: 'test "$(tail -n 1 work)" = 20' } } },
}

/** Runs an innocent session next to a hostile session. */
async function runBeside(
  range: AttackRange,
  script: string,
  more: Record<string, unknown>,
): Promise<{ hostile: EndedSession; innocent: EndedSession }> {
  const [hostile, innocent] = await Promise.all([range.run(script, more), range.run(INNOCENT.script, INNOCENT.more)])
  expect(innocent.outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 }, counts: { calls: 2 } })
  return { hostile, innocent }
}

/** Counts open files of this process and its children, such as a gateway; sandboxes are deeper descendants. */
function openFiles(): number {
  const isOurs = (pid: string): boolean => pid === String(process.pid) || parentOf(pid) === String(process.pid)
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && isOurs(name))
    .reduce((sum, pid) => sum + namesIn(`/proc/${pid}/fd`).length, 0)
}

function parentOf(pid: string): string | undefined {
  try {
    return /^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  } catch {
    return undefined
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

const whyNoLimit =
  (limit: 'pids' | 'memoryMb' | 'diskMb') =>
  ({ runtime }: AttackRange): string | undefined =>
    runtime.capabilities.limits.includes(limit)
      ? undefined
      : `this machine cannot limit ${LIMIT_NAMES[limit]} for the runtime`

const LIMIT_NAMES = { pids: 'processes', memoryMb: 'memory', diskMb: 'the disk' } as const

export const neighbourAttacks: readonly Attack[] = [
  finds('marks-in-shared-folders', 'The agent leaves files in /tmp, /dev/shm and HOME for another session to read', 'shared-folders', '', 'further'), // prettier-ignore
  finds('sockets-of-another-session', 'The agent listens on an abstract socket, a port and shared memory for another session', 'shared-sockets', '', 'further'), // prettier-ignore
  finds(
    'inotify-instances',
    'The agent takes every inotify instance of its user',
    'inotify-instances',
    'made',
    'resource limits',
    sharesUsers,
  ),
  finds('processes-of-another-session', 'The agent looks for processes of another session and kills them', 'processes', '', 'further'), // prettier-ignore
  {
    id: 'fork-bomb',
    title: 'The agent starts processes until it may start no more',
    defence: 'resource limits',
    target: 'neighbour',
    whyNot: whyNoLimit('pids'),
    async run(range) {
      const bomb = 'ask one > /dev/null; b() { b | b & }; b 2> /dev/null; sleep 600'
      const { hostile } = await runBeside(range, bomb, { timeout_seconds: 2, runtime: { pids: 64 } })
      expect(hostile.outcome.counts).toMatchObject({ calls: 1 })
    },
  },
  {
    id: 'memory',
    title: 'The agent takes more memory than it may have',
    defence: 'resource limits',
    target: 'neighbour',
    whyNot: whyNoLimit('memoryMb'),
    async run(range) {
      const eat = `ask one > /dev/null; perl -e 'my @x; push @x, "x" x 8_000_000 for 1..100; print "ate"'; perl -e 'my @x; push @x, "x" x 8_000_000 for 1..100; print "ate"'; exit 1`
      const { hostile } = await runBeside(range, eat, {
        runtime: { memory_mb: 128 },
        evaluator: { strategy: 'session_completed' },
      })
      expect(hostile.stdout).not.toContain('ate')
      expectGraded(hostile)
    },
  },
  {
    id: 'disk',
    title: 'The agent writes until its disk is full, and ends',
    defence: 'edges',
    target: 'neighbour',
    whyNot: whyNoLimit('diskMb'),
    async run(range) {
      const fill = `ask one > /dev/null; for f in a /tmp/b ~/c /dev/shm/d; do head -c 64M /dev/zero > $f; done 2> /dev/null; rm -f a /tmp/b; ask two | status; exit 1`
      const { hostile } = await runBeside(range, fill, {
        runtime: { storage_mb: 16 },
        evaluator: { strategy: 'command', config: { command: 'test -e solved' } },
      })
      expectGraded(hostile)
      expect(hostile.outcome.counts).toMatchObject({ calls: 2 })
    },
  },
  {
    id: 'connection-flood',
    title: 'The agent opens 3,000 connections to its door and holds them',
    defence: 'further',
    target: 'neighbour',
    async run(range) {
      const hold = `ask the-flood-begins > /dev/null; export AT="$at"
for p in 1 2 3 4; do perl -MSocket -e 'my ($host, $port) = split /:/, $ENV{AT}; my @held; for (1..750) { socket(my $s, PF_INET, SOCK_STREAM, 0) or last; connect($s, sockaddr_in($port, inet_aton($host))) or last; push @held, $s } sleep 600' & done
wait`
      const before = openFiles()
      const holder = range.submit(hold, { timeout_seconds: 120 })
      try {
        await expect.poll(() => range.engine.textsWith('the-flood-begins').length).toBe(1)
        const innocent = await range.run(INNOCENT.script, INNOCENT.more)
        expect(innocent.outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
        expect(openFiles() - before).toBeLessThan(1500)
      } finally {
        holder.cancel('the attack is over')
        await holder.outcome
      }
    },
  },
  {
    id: 'many-calls',
    title: 'The agent makes 100 calls that have nothing in common',
    defence: 'resource limits',
    target: 'neighbour',
    async run(range) {
      const calls = String.raw`AT="$at" BASE="$base" perl -MSocket -e 'my ($host, $port) = split /:/, $ENV{AT}; my $ok = 0;
for my $i (1..100) { socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, sockaddr_in($port, inet_aton($host))) or next;
my $body = "{\"model\":\"tiny\",\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"unrelated " . ($i * 7919) . "\"}]}";
syswrite $s, "POST $ENV{BASE}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $ENV{OPENAI_API_KEY}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
local $/; $ok++ if <$s> =~ m{^HTTP/1.1 200} } print "ok $ok\n"'`
      const { hostile } = await runBeside(range, calls, { evaluator: { strategy: 'session_completed' } })
      expect(hostile.stdout).toContain('ok 100')
      expect(hostile.outcome).toMatchObject({ status: 'COMPLETED', counts: { calls: 100 } })
    },
  },
]
