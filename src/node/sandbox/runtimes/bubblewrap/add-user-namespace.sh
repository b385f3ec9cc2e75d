# Second half of a start, as root of the outer user namespace: starts the process that holds the inner user namespace, whose only
# user is the user of commands, outside of the sandbox's view, and becomes bwrap. USER_NAMESPACES limits the number of nested
# user namespaces; with 1, the inner one uses up the limit and commands cannot create another, which would give them access to
# more of the kernel. QUOTAS limits per-user resources for this namespace; the resource limits of QUOTA_PREFIX apply to the
# inner namespace.
# shellcheck disable=SC2086,SC2154,SC2016
set -eu
cd /sys
echo "$USER_NAMESPACES" > /proc/sys/user/max_user_namespaces
for quota in $QUOTAS; do
  if [ -e "/proc/sys/user/${quota%=*}" ]; then echo "${quota#*=}" > "/proc/sys/user/${quota%=*}"; fi
done
$QUOTA_PREFIX unshare --user --map-user="$INSIDE_ID" --map-group="$INSIDE_ID" -- setpriv --pdeathsig KILL /bin/sh -c 'echo "users $$"; exec sleep infinity >/dev/null 2>&1' &
exec "$@"
