import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect } from 'vitest'
import { NodeStack, orderOf, shellTask } from '../node-stack.ts'
import { raid, type Attack } from './attack.ts'
import type { AttackRange } from './attack-range.ts'
import { expectGraded } from './expectations.ts'

const CLI = fileURLToPath(new URL('../../../src/cli/main.ts', import.meta.url))
const METADATA_HOSTS = '169.254.169.254 fd00:ec2::254 100.100.100.200'

const machineRaid = raid('machine', { task: () => ({ evaluator: { strategy: 'session_completed' } }) }, [
  {
    id: 'names-in-proc',
    title: 'The agent searches /proc for file names, environments and command lines of the node and of graders',
    defence: 'further',
    target: 'machine',
    script: `ask one > /dev/null
for p in /proc/[0-9]* /proc/self /proc/thread-self; do
  cat $p/environ $p/cmdline $p/mountinfo $p/mounts $p/maps 2>/dev/null; ls -l $p/fd $p/cwd $p/root 2>/dev/null; done | tr '\\0' '\\n'
cat /proc/keys /proc/locks /proc/net/unix /proc/net/tcp /proc/sysvipc/shm 2>/dev/null`,
    holds(printed, { range }) {
      expect(printed).not.toContain(range.secret)
      expect(printed).not.toContain(range.dir)
      expect(printed).not.toMatch(/vitest|test_on_output|score-links/)
    },
  },
  {
    id: 'secrets-of-the-node',
    title: 'The agent reads files of the machine that every user may read, by name, by link and through /proc',
    defence: 'further',
    target: 'machine',
    script: ({ secretFile }) => `
cat ${secretFile} /proc/1/root${secretFile} /proc/self/root${secretFile} 2>&1; ln -s ${secretFile} link; cat link; env`,
    holds: (printed, { range }) => expect(printed).not.toContain(range.secret),
  },
  {
    id: 'host-ports',
    title: 'The agent connects to the engine, the gateway, the grading service and cloud metadata',
    defence: 'further',
    target: 'machine',
    script: (range) => {
      const ports = [range.engine.url, range.tinyEngine.url, range.stack.opened.gateway.url, range.service.url]
      return `
for port in ${ports.map((url) => new URL(url).port).join(' ')}; do for host in 127.0.0.1 ::1 0.0.0.0 10.0.2.2 10.88.0.1 172.17.0.1; do
  timeout 2 bash -c "exec 8<>/dev/tcp/$host/$port" 2> /dev/null && echo "reached $host $port"; done; done
for host in ${METADATA_HOSTS}; do timeout 2 bash -c "exec 8<>/dev/tcp/$host/80" 2> /dev/null && echo "reached $host"; done; :`
    },
    holds: (printed) => expect(printed).toBe(''),
  },
  {
    id: 'virtual-machine-sockets',
    title: 'The agent opens a socket to the host of the virtual machine (AF_VSOCK), raw and packet sockets',
    defence: 'resource limits',
    target: 'machine',
    script: `perl -e 'for ([40, 1, 0], [40, 2, 0], [2, 3, 1], [17, 3, 768], [16, 3, 9], [38, 5, 0]) { my ($f, $t, $p) = @$_; print socket(my $s, $f, $t, $p) ? "opened $f\\n" : "refused\\n" }'`,
    holds(printed) {
      // Netlink (16) of an own network namespace harms no other process.
      expect(printed.replaceAll('opened 16', 'refused')).toBe('refused\nrefused\nrefused\nrefused\nrefused\nrefused')
    },
  },
  {
    id: 'own-listener-on-the-door-port',
    title: 'The agent listens on the port of its door, to receive calls of other sessions',
    defence: 'further',
    target: 'neighbour',
    script: `perl -MSocket -e 'my ($host, $port) = split /:/, $ARGV[0]; for my $reuse (2, 15) { for my $address ("127.0.0.1", "0.0.0.0") { socket(my $s, PF_INET, SOCK_STREAM, 0); setsockopt($s, SOL_SOCKET, $reuse, 1); print bind($s, sockaddr_in($port, inet_aton($address))) && listen($s, 5) ? "listens\\n" : "refused\\n" } }' "$at"
ask after | status`,
    holds: (printed) => expect(printed).toMatch(/^HTTP\/1\.1 200 /m),
  },
  {
    id: 'terminal-input',
    title: 'The agent types characters into the terminal of the node (TIOCSTI) and opens /dev/tty and /dev/console',
    defence: 'further',
    target: 'machine',
    script: `perl -e 'for my $path ("/dev/tty", "/dev/console", "/dev/tty1", "/proc/self/fd/0") { open(my $t, "+<", $path) or next; my $c = "x"; print "typed $path\\n" if ioctl($t, 0x5412, $c) }'; echo done`,
    holds: (printed) => expect(printed).toBe('done'),
  },
  {
    id: 'scheduled-jobs',
    title: 'The agent leaves jobs for cron, at, systemd and login shells',
    defence: 'further',
    target: 'machine',
    script: `for f in /etc/cron.d/attack /var/spool/cron/crontabs/root /var/spool/cron/attack /etc/systemd/system/attack.service /etc/profile.d/attack.sh /etc/rc.local.attack /root/.ssh/authorized_keys.attack; do mkdir -p "$(dirname $f)" 2> /dev/null; echo '* * * * * root touch /tmp/attack' > $f; done 2> /dev/null; :`,
    holds() {
      for (const folder of [
        '/etc/cron.d',
        '/var/spool/cron',
        '/var/spool/cron/crontabs',
        '/etc/systemd/system',
        '/etc/profile.d',
      ])
        expect(existsSync(folder) ? readdirSync(folder).filter((name) => name.includes('attack')) : []).toEqual([])
    },
  },
  {
    id: 'clock',
    title: 'The agent sets the clock of the machine',
    defence: 'edges',
    target: 'machine',
    script: `date -s 2001-01-01 > /dev/null 2>&1 && echo set; perl -e 'my $t = pack("qq", 1, 0); print syscall(${process.arch === 'arm64' ? 112 : 227}, 0, $t) == 0 ? "set" : "refused"'`,
    holds(printed, { session }) {
      expect(printed).toBe('refused')
      expect(new Date().getFullYear()).toBeGreaterThan(2020)
      for (const value of Object.values(session.outcome.timing))
        if (value != null) expect(value).toBeGreaterThanOrEqual(0)
    },
  },
])

const proxyRaid = raid(
  'proxy',
  {
    task: () => ({
      runtime: { allow_hosts: ['allowed.invalid', 'localhost', '127.0.0.1', '169.254.169.254'] },
      evaluator: { strategy: 'session_completed' },
    }),
    whyNot: ({ runtime }) =>
      runtime.capabilities.networks.includes('allow') ? undefined : 'the runtime has no proxy for allowed hosts',
  },
  [
    {
      id: 'proxy-to-private-addresses',
      title: 'The agent asks the proxy for loopback, private and metadata addresses, in every notation',
      defence: 'further',
      target: 'machine',
      script: ({ service: { port } }) => `ask one > /dev/null
proxy="\${HTTP_PROXY:-$http_proxy}"; proxy="\${proxy#http://}"; proxy="\${proxy%/}"
try() { exec 7<>"/dev/tcp/\${proxy%:*}/\${proxy#*:}"; printf "$1" >&7; timeout 5 head -n 1 <&7 | tr -d '\\r'; exec 7<&- 7>&-; echo; }
echo "proxy $proxy"
for h in localhost 127.0.0.1 127.1 0x7f000001 2130706433 0.0.0.0 '[::1]' '[::ffff:127.0.0.1]' 169.254.169.254 allowed.invalid other.example LOCALHOST localhost.; do
  try "CONNECT $h:${port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"; try "GET http://$h:${port}/score HTTP/1.1\\r\\nHost: $h\\r\\nConnection: close\\r\\n\\r\\n"; done`,
      holds(printed, { range }) {
        expect(printed).toMatch(/^proxy .+:\d+$/m)
        expect(printed).not.toMatch(/^HTTP\/1\.1 [23]\d\d /m)
        expect(range.service.received('/score', '')).toEqual(range.service.received('/score', 'session_id'))
      },
    },
    {
      id: 'malformed-proxy-requests',
      title: 'The agent sends the proxy ports that do not exist, trailers, upgrades and broken requests',
      defence: 'socket errors',
      target: 'node',
      script: `proxy="\${HTTP_PROXY:-$http_proxy}"; proxy="\${proxy#http://}"; proxy="\${proxy%/}"
try() { exec 7<>"/dev/tcp/\${proxy%:*}/\${proxy#*:}"; printf "$1" >&7 2>/dev/null; timeout 2 head -n 1 <&7 > /dev/null 2>&1; exec 7<&- 7>&-; }
for t in allowed.invalid:99999 allowed.invalid:0 allowed.invalid:-1 allowed.invalid: :80 allowed.invalid '[' '' 'a b:1'; do try "CONNECT $t HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"; done
try "GET http://allowed.invalid/ HTTP/1.1\\r\\nHost: x\\r\\nTrailer: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\nx: y\\r\\n\\r\\n"
try "GET http://allowed.invalid/ HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: x\\r\\n\\r\\n"
try "GET http://allowed.invalid:99999/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
try "OPTIONS * HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"; try "\\026\\003\\001 nonsense\\r\\n\\r\\n"
ask after | status`,
      holds(printed, { session }) {
        expect(printed).toMatch(/^HTTP\/1\.1 200 /m)
        expectGraded(session)
      },
    },
  ],
)

/** JSON of sequences that clear the screen, set a title, write the clipboard and move the cursor, and 8-bit forms of them. */
const SEQUENCES = String.raw`\u001b[2J\u001b[1;1H\u001b]0;owned\u0007\u001b]52;c;b3duZWQ=\u0007\u001bPq\u001b\\\u009b31m\u009d0;x\u009c\rforged line`

export const machineAttacks: readonly Attack[] = [
  ...machineRaid,
  ...proxyRaid,
  {
    id: 'escape-sequences',
    title: 'The agent puts escape sequences into calls and error output that the CLI prints',
    defence: 'edges',
    target: 'machine',
    async run(range) {
      const session = await range.run(`ask '${SEQUENCES}' | status; printf '\\033]0;owned\\007\\033[2J' >&2; exit 3`, {
        evaluator: { strategy: 'session_completed' },
      })
      expectGraded(session)
      const out = join(range.stack.dir, 'sessions')
      const shown = spawnSync(process.execPath, [CLI, 'show', session.outcome.sessionId, '--from', out, '--full'], {
        encoding: 'utf8',
      })
      expect(shown.stdout).toContain('forged line')
      expect((shown.stdout + shown.stderr).replaceAll(/[\n\t]/g, '')).not.toMatch(/\p{Cc}/u)
    },
  },
  {
    id: 'missing-sandbox-program',
    title: 'The program of the sandbox is missing when the session starts',
    defence: 'no unsandboxed run',
    target: 'machine',
    async run(range) {
      const broken = { ...range.options.settings, program: missingProgram(range), socket: '/nowhere/engine.sock' }
      const settings = Object.fromEntries(
        Object.entries(broken).filter(
          ([key]) => key in range.options.settings || (key === 'program' && range.name === 'bubblewrap'),
        ),
      )
      await using stack = await NodeStack.start({
        upstream: range.engine.url,
        runtime: range.options.kind,
        runtimeSettings: { [range.options.kind]: settings },
      })
      const proof = join(range.dir, 'ran-without-a-sandbox')
      const outcome = await stack.node.submit(orderOf(shellTask(`touch ${proof}`))).outcome
      const ran = existsSync(proof)
      await rm(proof, { force: true })
      expect(ran).toBe(false)
      expect(outcome).toMatchObject({
        status: 'ERROR',
        failure: { code: expect.stringMatching(/^(runtime|config)\./) },
      })
      expect(outcome.grade).toBeUndefined()
    },
  },
]

function missingProgram({ name }: AttackRange): unknown {
  return name === 'Apptainer' ? ['/nowhere/apptainer'] : '/nowhere/bwrap'
}
