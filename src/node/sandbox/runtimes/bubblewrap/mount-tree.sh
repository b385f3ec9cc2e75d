# First half of a start: assembles the sandbox's file tree in a new mount namespace, which vanishes with its last process.
# Everything is mounted below /sys, which exists on every machine and holds no file of ours. Runs as the node's user, so that
# folders that only the node may enter can be used. New directories go to the upper layer, which is still empty: no link that a
# sandbox left behind can redirect them. Commands can add entries to the root folder, because some tasks keep files in /app,
# /tests or /logs; existing entries of the root folder stay.
# shellcheck disable=SC2153,SC2154
set -eu
{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null || :
cd "$FOLDER"
mount -t tmpfs -o mode=755,size=1m polar /sys
mkdir /sys/rw /sys/root
if [ -n "$PROGRAM_FOLDER" ]; then mkdir /sys/program; mount --rbind "$PROGRAM_FOLDER" /sys/program; fi
if [ -n "$DISK_MB" ]; then mount -t tmpfs -o "mode=755,size=${DISK_MB}m" polar /sys/rw; else mount --bind rw /sys/rw; fi
n=0
while [ "$n" -lt "$LAYERS" ]; do
  mkdir "/sys/l$n"
  if [ "$n" -ge "$MAPPED" ]; then mount --rbind "$(eval "printf %s \"\$LAYER_$n\"")" "/sys/l$n"; fi
  n=$((n+1))
done
if [ "$MAPPED" -gt 0 ]; then perl -e "$MAP_LAYERS"; fi
cd /sys/rw
mkdir -p upper work shm
chmod 1777 shm upper
if [ -n "$SEED" ] && [ -d "/sys/l0$WORKDIR" ] && [ ! -L "/sys/l0$WORKDIR" ]; then
  mkdir -p "upper$(dirname "$WORKDIR")"; cp -a --reflink=auto "/sys/l0$WORKDIR" "upper$WORKDIR"
fi
mkdir -p upper/proc upper/dev upper/tmp upper/var/tmp
chmod 1777 upper/tmp upper/var/tmp
mkdir -p "upper$WORKDIR" "upper$HOME_DIR"
n=0
while [ "$n" -lt "$OWNED" ]; do
  owned=$(eval "printf %s \"\$OWNED_$n\""); mkdir -p "upper$owned"
  if [ -n "$OWNER" ]; then chown -h "$OWNER" "upper$owned"; fi
  n=$((n+1))
done
if [ -n "$OWNER" ]; then chown "$OWNER" . work shm upper/tmp upper/var/tmp && chown -R -h "$OWNER" "upper$WORKDIR" "upper$HOME_DIR"; fi
if [ -n "$RESOLVE" ]; then mkdir -p upper/etc; for f in resolv.conf hosts; do cp -L "/etc/$f" "upper/etc/$f" || :; done; fi
n=0
while [ "$n" -lt "$MOUNTS" ]; do
  source=$(eval "printf %s \"\$SOURCE_$n\""); target=$(eval "printf %s \"\$TARGET_$n\"")
  if [ -d "$source" ]; then mkdir -p "upper$target"; else mkdir -p "upper$(dirname "$target")"; : >> "upper$target"; fi
  n=$((n+1))
done
cd /sys
lower=; for layer in l[0-9]*; do lower="$lower:$layer"; done
mount -t overlay "$NAME" -o "lowerdir=${lower#:},upperdir=rw/upper,workdir=rw/work$OVERLAY" root
readonly_below() { while read -r _ _ _ _ point _; do case "$point" in "$1"|"$1"/*) mount -o remount,bind,ro "$point";; esac; done < /proc/self/mountinfo; }
hide() { if [ -d "$1" ]; then mount -t tmpfs -o ro,size=4k,mode=0 polar "$1"; fi; }
for folder in $FOLDERS; do mount --rbind "$folder" "root$folder"; readonly_below "/sys/root$folder"; done
n=0
while [ "$n" -lt "$MOUNTS" ]; do
  source=$(eval "printf %s \"\$SOURCE_$n\""); target=$(eval "printf %s \"\$TARGET_$n\"")
  mount --rbind "$source" "root$target"
  [ "$(eval "printf %s \"\$READONLY_$n\"")" = 0 ] || readonly_below "/sys/root$target"
  case "$HIDDEN/" in "${source%/}"/*) hide "root$target${HIDDEN#"${source%/}"}";; esac
  n=$((n+1))
done
hide "root$HIDDEN"
exec "$@"
