# An agent in plain bash: sends its instruction to the model and writes the answer to answer.txt.
# The address of the model is in the variables that every OpenAI client reads.
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
