/**
 * A hostile agent in bash, for sandboxes without any other program. Functions for its script:
 * `ask WORDS [FIELDS [HEADER…]]` calls the model and prints the raw answer, `send METHOD PATH [HEADER…]` sends its standard
 * input as a request body, `status` prints the status line of an answer, `mark NAME` begins a section of the output.
 */
export function hostileAgent(script: string): string {
  return `bash -c '${`${PRELUDE}\n${script}`.replaceAll("'", String.raw`'\''`)}'`
}

const PRELUDE = String.raw`
trap "" PIPE
export LC_ALL=C
rest="${'$'}{OPENAI_BASE_URL#http://}"; at="${'$'}{rest%%/*}"; base="/${'$'}{rest#*/}"
dial() { exec 9<>"/dev/tcp/${'$'}{at%:*}/${'$'}{at#*:}"; }
send() {
  local method=$1 path=$2 body header; shift 2
  body=$(mktemp); cat > "$body"
  dial || { echo unreachable; return 1; }
  { printf "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n" \
      "$method" "$path" "$at" "${'$'}{KEY:-$OPENAI_API_KEY}" "$(wc -c < "$body")"
    for header; do printf "%s\r\n" "$header"; done
    printf "\r\n"; cat "$body"; } >&9 2>/dev/null
  cat <&9 2>/dev/null
  exec 9<&- 9>&-; rm -f "$body"; echo 2>/dev/null
}
status() { head -n 1 | tr -d "\r"; }
ask() {
  local words=$1 fields=$2; shift; [ $# = 0 ] || shift
  printf "{\"model\":\"tiny\",\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s}" "$words" "${'$'}{fields:+,$fields}" \
    | send POST "$base/chat/completions" "$@"
}
mark() { printf "\n@@ %s\n" "$1"; }
`
