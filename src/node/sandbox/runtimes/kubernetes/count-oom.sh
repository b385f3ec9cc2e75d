# Stores the number of processes that the kernel killed for lack of memory in `killed`; empty if the container cannot read it.
# shellcheck disable=SC2034
oom() {
  killed=
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    while read -r key value; do [ "$key" = oom_kill ] && killed=$value; done 2>/dev/null < "$file"
  done
}
