# Argument: workdir. Prints memory in bytes, CPU time in microseconds, number of processes, disk usage in KB.
for file in memory.current memory/memory.usage_in_bytes; do
  { read -r bytes < "/sys/fs/cgroup/$file"; } 2>/dev/null && { echo "memory $bytes"; break; }
done
while read -r key value; do [ "$key" = usage_usec ] && echo "cpu $value"; done 2>/dev/null < /sys/fs/cgroup/cpu.stat
for file in cpuacct cpu,cpuacct; do
  { read -r value < "/sys/fs/cgroup/$file/cpuacct.usage"; } 2>/dev/null && { echo "cpu $((value / 1000))"; break; }
done
set -- "$1" /proc/[0-9]*; echo "processes $(($# - 2))"
used=$(du -skx -- "$1" 2>/dev/null) && echo "disk ${used%%[!0-9]*}"
