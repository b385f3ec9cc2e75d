# Runs the server and writes its address to a file.
# shellcheck shell=bash disable=SC2154
host=$(hostname -f 2>/dev/null || hostname)
server=''
trap 'if [ -n "$server" ]; then kill -TERM "$server"; fi' USR1 TERM INT
address="$work/server-$SLURM_JOB_ID.url"
ready() {
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ \"url\":\"(https?)://[^\"]*:([0-9]+)\" ]]; then
      printf '%s://%s:%s\n' "${BASH_REMATCH[1]}" "$host" "${BASH_REMATCH[2]}" > "$address.new"
      mv "$address.new" "$address"
    fi
  done
}
"${polar[@]}" server "${arguments[@]}" --json > >(ready) &
server=$!
while :; do
  wait "$server"
  code=$?
  kill -0 "$server" 2>/dev/null || break
done
rm -f "$address"
exit "$code"
