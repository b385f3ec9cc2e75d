# Maps one layer, appends to a file of it through an overlay and prints the owner of the copy.
set -eu
mount -t tmpfs polar /sys
mkdir /sys/l0 /sys/upper /sys/work /sys/root
perl -e "$MAP_LAYERS"
mount -t overlay polar -o lowerdir=/sys/l0,upperdir=/sys/upper,workdir=/sys/work /sys/root
echo more >> /sys/root/file
stat -c %u /sys/root/file
