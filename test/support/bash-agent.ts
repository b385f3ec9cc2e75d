/**
 * An agent in bash and nothing else, for sandboxes in which nothing is installed. `call WORDS` asks the model and prints
 * the raw answer; the rest is the body's.
 */
export function bashAgent(body: string): string {
  return `bash -c '${`${CALL}\n${body}`.replaceAll("'", String.raw`'\''`)}'`
}

const CALL = String.raw`
call() {
  local url="$OPENAI_BASE_URL/chat/completions" rest host path body
  rest="${'$'}{url#http://}"; host="${'$'}{rest%%/*}"; path="/${'$'}{rest#*/}"
  body="{\"model\":\"tiny\",\"max_tokens\":16,\"messages\":[{\"role\":\"user\",\"content\":\"$1\"}]}"
  exec 9<>"/dev/tcp/${'$'}{host%:*}/${'$'}{host#*:}" || return 1
  printf 'POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
    "$path" "$host" "${'$'}{KEY:-$OPENAI_API_KEY}" "${'$'}{#body}" "$body" >&9
  cat <&9
  exec 9<&-
}
`
