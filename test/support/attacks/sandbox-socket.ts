import { expect } from 'vitest'
import { raid, type Attack } from './attack.ts'
import { expectGraded } from './expectations.ts'
import { holderOf } from './holder.ts'

const OK = /^HTTP\/1\.1 200 /m

/** Returns a Perl command with `$host`, `$port` and `connect_door()`, which connects to the sandbox socket. */
function perl(program: string): string {
  const open = String.raw`use Socket; my ($host, $port) = split /:/, $ENV{AT};
sub connect_door { socket(my $s, PF_INET, SOCK_STREAM, 0) or die; connect($s, sockaddr_in($port, inet_aton($host))) or return; $s }
$SIG{PIPE} = "IGNORE";`
  return `AT="$at" BASE="$base" perl -e '${open}\n${program}'`
}

export const socketAttacks: readonly Attack[] = raid(
  'door',
  { task: () => ({ evaluator: { strategy: 'session_completed' }, timeout_seconds: 120 }) },
  [
    {
      id: 'bodies-of-numbers',
      title: 'The agent sends bodies of 4 to 40 MB whose messages are millions of numbers, to all four APIs',
      defence: 'body limits',
      target: 'node',
      script: `
numbers() { perl -e 'print "{\\"model\\":\\"tiny\\",\\"max_tokens\\":8,\\"$ARGV[0]\\":[", "1," x ($ARGV[1] / 2), "1]}"' $1 $2; }
numbers messages 40000000 | send POST "$base/chat/completions" | status
numbers messages 4000000 | send POST "$base/messages" | status
numbers input 4000000 | send POST "$base/responses" | status
numbers contents 4000000 | send POST "\${base%/v1}/v1beta/models/tiny:generateContent" | status
ask after | status`,
      holds(printed) {
        const answers = printed.split('\n')
        expect(answers).toHaveLength(5)
        for (const answer of answers.slice(0, 4)) expect(answer).toMatch(/^HTTP\/1\.1 4\d\d /)
        expect(answers[4]).toMatch(OK)
      },
    },
    {
      id: 'upgrades-with-reset',
      title: 'The agent asks 200 times for a WebSocket and resets the connection',
      defence: 'socket errors',
      target: 'node',
      script: `${perl(String.raw`for (1..200) { my $s = connect_door() or next;
setsockopt($s, SOL_SOCKET, SO_LINGER, pack("ii", 1, 0));
syswrite $s, "GET $ENV{BASE}/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"; close $s }`)}
ask after | status`,
      holds: (printed) => expect(printed).toMatch(OK),
    },
    {
      id: 'bodies-in-flight',
      title: 'The agent holds 16 connections with unfinished bodies of 8 MB each',
      defence: 'resource limits',
      target: 'node',
      script: `${perl(String.raw`my @held; my $piece = "x" x 65536;
for (1..16) { my $s = connect_door() or next; push @held, $s;
syswrite $s, "POST $ENV{BASE}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $ENV{OPENAI_API_KEY}\r\nContent-Type: application/json\r\nContent-Length: 60000000\r\n\r\n";
for (1..128) { my $r = ""; vec($r, fileno($s), 1) = 1; my $w = $r; last unless select(undef, $w, undef, 1); last unless defined syswrite $s, $piece } }
print "held ", scalar(@held), "\n"`)}
ask after | status`,
      holds(printed) {
        expect(printed).toContain('held 16')
        expect(printed).toMatch(OK)
      },
    },
    {
      id: 'silent-connections',
      title: 'The agent holds 100 connections with unfinished headers and calls the model beside them',
      defence: 'further',
      target: 'node',
      script: `${perl(String.raw`for (1..100) { my $s = connect_door() or next; push @held, $s; syswrite $s, "POST $ENV{BASE}/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: " }
print "held ", scalar(@held), "\n"; sleep 5`)} > /tmp/held &
for i in $(seq 50); do grep -q held /tmp/held 2>/dev/null && break; sleep 0.1; done
ask beside | status; kill %1`,
      holds: (printed) => expect(printed).toMatch(OK),
    },
    {
      id: 'smuggled-requests',
      title: 'The agent hides a second request in the body of the first: two lengths, chunks and a length, bad chunks',
      defence: 'further',
      target: 'node',
      script: async (range) => {
        const id = (await holderOf(range)).session.sessionId
        return String.raw`
inner="GET /control/v1/sessions HTTP/1.1\r\nHost: x\r\n\r\nPOST /s/${id}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
head="POST $base/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $OPENAI_API_KEY\r\nContent-Type: application/json\r\nConnection: close\r\n"
try() { dial; printf "$head$1" >&9 2>/dev/null; timeout 5 cat <&9 2>/dev/null | grep -a -e "^HTTP/" | tr -d "\r"; exec 9<&- 9>&-; echo; }
try "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n$inner"
try "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n$inner"
try "Content-Length: 2\r\nContent-Length: 300\r\n\r\n{}$inner"
try "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n$inner"
try "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n$inner"
try "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n$inner"
try "Transfer-Encoding: chunked\r\n\r\n-1\r\n$inner"
try "Content-Length: +2\r\n\r\n{}$inner"
try "X: a\n b\r\nContent-Length: 2\r\n\r\n{}$inner"`
      },
      holds(printed) {
        expect(printed).not.toMatch(OK)
        expect(printed).toMatch(/^HTTP\/1\.1 4\d\d /m)
      },
    },
    {
      id: 'split-responses',
      title: 'The agent puts line breaks into paths, headers and names that an answer could repeat in its headers',
      defence: 'further',
      target: 'node',
      script: String.raw`
for p in "models/x%0d%0aX-Evil:%201" "models/%0d%0a%0d%0aHTTP/1.1%20200%20OK" "chat/completions?x=%0d%0aX-Evil:1"; do echo | send GET "$base/$p"; done
echo "{}" | send POST "${'$'}{base%/v1}/v1beta/models/x%0d%0aX-Evil:%201:generateContent"
ask hello "" "x-request-id: $(printf 'a\vX-Evil: 1')" "x-stainless-lang: $(printf '\001\002')"`,
      holds: (printed) => expect(printed).not.toMatch(/^x-evil:/im),
    },
    {
      id: 'paths-to-another-session',
      title: 'The agent reaches for another session by dots, double slashes, encoded slashes and absolute URLs',
      defence: 'further',
      target: 'neighbour',
      script: async (range) => {
        const id = (await holderOf(range)).session.sessionId
        return `own="\${base%/v1}"
for p in "$own/../${id}/v1/models" "$own/%2e%2e/${id}/v1/models" "/s/${id}/v1/models" "//s/${id}/v1/models" "/s/${id}%2f..%2f\${own#/s/}/v1/models" "http://localhost/s/${id}/v1/models" "/s/\${own#/s/}/s/${id}/v1/models"; do
  echo | send GET "$p" | status; done`
      },
      holds: (printed) => expect(printed).not.toMatch(OK),
    },
    {
      id: 'key-of-another-session',
      title: 'The agent uses the key of another session, alone and beside its own, through its own door',
      defence: 'further',
      target: 'neighbour',
      script: async (range) => {
        const { session, key } = await holderOf(range)
        const id = session.sessionId
        return `
echo | KEY=${key} send GET "/s/${id}/v1/models" | status
echo | KEY=${key} send GET "$base/models" | status
echo | send GET "/s/${id}/v1/models" "Authorization: Bearer ${key}" | status
echo | send GET "/s/${id}/v1/models" "x-api-key: ${key}" "x-goog-api-key: ${key}" | status
echo | send GET "/s/${id}/v1/models?key=${key}" | status
echo | KEY=${key} send GET "/v1/models" | status`
      },
      holds: (printed) => {
        expect(printed).not.toMatch(OK)
        expect(printed.match(/^HTTP\/1\.1 4\d\d /gm)).toHaveLength(6)
      },
    },
    {
      id: 'control-api-through-the-door',
      title: 'The agent asks its door for the control API, metrics and other internal paths',
      defence: 'edges',
      target: 'node',
      script: `for p in /control/v1/sessions /control/v1/pause /control/v1/status /control /metrics /admin /v1/sessions /health /callbacks/session_result /nodes /; do
  echo '{}' | send POST $p "Host: localhost" "Origin: http://localhost" | status; echo | send GET $p | status; done`,
      holds: (printed) => expect(printed).not.toMatch(OK),
    },
    {
      id: 'packed-body',
      title: 'The agent sends 100 MB of zeros packed into 100 KB',
      defence: 'further',
      target: 'node',
      script: `head -c 104857600 /dev/zero | gzip -1 | send POST "$base/chat/completions" "Content-Encoding: gzip" | status; ask after | status`,
      holds: (printed) => expect(printed).toMatch(/^HTTP\/1\.1 4\d\d .*\nHTTP\/1\.1 200 /),
    },
    {
      id: 'deep-bodies',
      title: 'The agent sends arrays in arrays, 200,000 levels deep, in every field that it may set',
      defence: 'further',
      target: 'node',
      script: `
deep() { perl -e 'print "{\\"model\\":\\"tiny\\",\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"x\\"}],\\"$ARGV[0]\\":", "[" x 200_000, "]" x 200_000, "}"' $1; }
for f in tools metadata messages stop response_format; do deep $f | send POST "$base/chat/completions" | status; done; ask after | status`,
      holds(printed) {
        const answers = printed.split('\n')
        for (const answer of answers.slice(0, -1)) expect(answer).toMatch(/^HTTP\/1\.1 4\d\d /)
        expect(answers.at(-1)).toMatch(OK)
      },
    },
    {
      id: 'prototype-keys',
      title: 'The agent sends bodies with the keys `__proto__`, `constructor` and `toString`',
      defence: 'further',
      target: 'node',
      script: `for k in __proto__ constructor prototype toString hasOwnProperty; do ask 'prototype keys' "\\"$k\\":{\\"polluted\\":true,\\"prototype\\":{\\"polluted\\":true}}" | status; done; ask after | status`,
      holds: (printed) => expect(printed.split('\n').at(-1)).toMatch(OK),
    },
    {
      id: 'header-flood',
      title: 'The agent sends 5,000 headers, and one header of 200 KB',
      defence: 'further',
      target: 'node',
      script: `
dial; { printf 'GET %s/models HTTP/1.1\\r\\nHost: x\\r\\n' "$base"; seq -f 'X-%g: x' 5000; printf '\\r\\n'; } >&9 2>/dev/null; timeout 5 head -n 1 <&9; exec 9<&- 9>&-
dial; { printf 'GET %s/models HTTP/1.1\\r\\nHost: x\\r\\nX: ' "$base"; head -c 200000 /dev/zero | tr '\\0' x; printf '\\r\\n\\r\\n'; } >&9 2>/dev/null; timeout 5 head -n 1 <&9; exec 9<&- 9>&-
ask after | status`,
      holds: (printed) => expect(printed.split('\n').at(-1)).toMatch(OK),
    },
    {
      id: 'refused-requests',
      title: 'The agent sends 10 requests of 1 MB that the engine refuses, to fill the storage of the node',
      defence: 'resource limits',
      target: 'node',
      script: `for i in $(seq 10); do perl -e 'print "{\\"model\\":\\"tiny\\",\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"SCRIPT:refused ", "refused $ARGV[0] " x 100_000, "\\"}]}"' $i | send POST "$base/chat/completions" | status; done`,
      async holds(printed, { range, session }) {
        expect(printed).not.toMatch(OK)
        const { turns } = await range.recorded(session)
        const bytes = turns
          .filter(({ request }) => request.includes('SCRIPT:refused'))
          .reduce((sum, { request }) => sum + request.length, 0)
        expect(bytes).toBeLessThan(1_000_000)
      },
    },
    {
      id: 'unread-streams',
      title: 'The agent opens 20 streams, reads nothing of half of them and drops the others',
      defence: 'further',
      target: 'node',
      script: `${perl(String.raw`my $body = q({"model":"tiny","stream":true,"max_tokens":2000,"messages":[{"role":"user","content":"SCRIPT:long unread"}]}); my @held;
for my $i (1..20) { my $s = connect_door() or next; syswrite $s, "POST $ENV{BASE}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $ENV{OPENAI_API_KEY}\r\nContent-Type: application/json\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
if ($i % 2) { push @held, $s } else { sysread $s, my $begin, 100; close $s } }
print "held ", scalar(@held), "\n"`)}
ask after | status`,
      holds(printed, { session }) {
        expect(printed).toMatch(OK)
        // After all attacks of this session: it ended normally, and its record is complete.
        expectGraded(session)
        expect(session.outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
      },
    },
  ],
)
