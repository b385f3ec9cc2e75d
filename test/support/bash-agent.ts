/**
 * Returns an agent in plain bash, for sandboxes without other programs. The body may use `call WORDS`, which calls the
 * model and prints the raw answer, streamed if STREAM is set.
 */
export function bashAgent(body: string): string {
  return `bash -c '${`${CALL}\n${body}`.replaceAll("'", String.raw`'\''`)}'`
}

const CALL = String.raw`
call() {
  local url="$OPENAI_BASE_URL/chat/completions" rest host path body
  rest="${'$'}{url#http://}"; host="${'$'}{rest%%/*}"; path="/${'$'}{rest#*/}"
  body="{\"model\":\"tiny\",\"max_tokens\":16,${'$'}{STREAM:+\"stream\":true,}\"messages\":[{\"role\":\"user\",\"content\":\"$1\"}]}"
  exec 9<>"/dev/tcp/${'$'}{host%:*}/${'$'}{host#*:}" || return 1
  printf 'POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
    "$path" "$host" "${'$'}{KEY:-$OPENAI_API_KEY}" "${'$'}{#body}" "$body" >&9
  cat <&9
  exec 9<&-
}
`

/**
 * Like `bashAgent`, with a conversation: `talk WORDS…` sends one question per call with the whole history, so that the
 * calls form one trace.
 */
export function talkingAgent(body: string): string {
  return bashAgent(`${TALK}\n${body}`)
}

const TALK = String.raw`
export LC_ALL=C
talk() {
  local said="" question answer body url="$OPENAI_BASE_URL/chat/completions" rest host path
  rest="${'$'}{url#http://}"; host="${'$'}{rest%%/*}"; path="/${'$'}{rest#*/}"
  for question in "$@"; do
    said="$said{\"role\":\"user\",\"content\":\"$question\"}"
    body="{\"model\":\"tiny\",\"max_tokens\":4,\"temperature\":0,\"messages\":[$said]}"
    exec 9<>"/dev/tcp/${'$'}{host%:*}/${'$'}{host#*:}" || return 1
    printf 'POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
      "$path" "$host" "$OPENAI_API_KEY" "${'$'}{#body}" "$body" >&9
    answer="$(cat <&9 | sed -n 's/.*"content": *"\(\([^"\\]\|\\.\)*\)".*/\1/p' | head -n 1)"
    exec 9<&-
    said="$said,{\"role\":\"assistant\",\"content\":\"$answer\"},"
  done
}
`
