# An agent in bash and nothing else: asks the model what its instruction says, and leaves the answer in answer.txt.
# It is told where the model is by the variables every OpenAI client reads.
question=$(tr -d '"\\\n' < "$POLAR_INSTRUCTION_FILE")
address=${OPENAI_BASE_URL#http://}
host=${address%%/*}
body="{\"model\":\"$OPENAI_MODEL\",\"max_tokens\":32,\"messages\":[{\"role\":\"user\",\"content\":\"$question\"}]}"

exec 3<>"/dev/tcp/${host%:*}/${host#*:}" || exit 1
printf '%s\r\n' "POST /${address#*/}/chat/completions HTTP/1.1" "Host: $host" \
  "Authorization: Bearer $OPENAI_API_KEY" 'Content-Type: application/json' \
  "Content-Length: ${#body}" 'Connection: close' '' >&3
printf '%s' "$body" >&3
grep -o '"content":"[^"]*"' <&3 | tee answer.txt
