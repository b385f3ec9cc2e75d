# Creates the mounts and folders of one sandbox in a new mount namespace, in which they vanish with it, and becomes Apptainer. The
# name of the memory file system identifies the sandbox's processes. The kernel's out-of-memory killer chooses processes of the
# sandbox first. New directories go to the upper layer, which is still empty: no link can redirect them.
my ($name, $folder, $shared, $disk, $memory, $workdir, $home, $owner, $is_root, $count, $owned) = splice @ARGV, 0, 11;
my @targets = splice @ARGV, 0, $count;
my @folders = splice @ARGV, 0, $owned;
umask 0;
put('/proc/self/oom_score_adj', '1000');
chdir $folder or die "$folder: $!\n";
$is_root ? call('unshare', $NEW_MOUNTS) : map_users($> + 0, $) + 0, $NEW_MOUNTS);
detach_mounts();
mkdir('rw', 0755) || -d 'rw' or die "rw: $!\n";
call('mount', $name, "$folder/rw", 'tmpfs', $NO_SUID | $NO_DEVICES, "mode=755,size=${disk}m") if $disk;
mkdir($_, 0755) || die "$_: $!\n" for 'rw/upper', 'rw/work', $shared;
call('mount', $name, "$folder/$shared", 'tmpfs', $NO_SUID | $NO_DEVICES, 'mode=1777' . ($memory ? ",size=${memory}m" : '')) unless $disk;
chmod 01777, $shared, dirs('rw/upper', 'tmp'), dirs('rw/upper', 'var/tmp');
for (@targets) {
  my ($kind, $parent, $name) = m{^(.)(.*)/([^/]+)$}s or die "$_ is no target\n";
  my $place = dirs('rw/upper', $parent);
  if ($kind eq 'd') { dirs($place, $name) } else { open(my $file, '>>', "$place/$name") or die "$parent/$name: $!\n" }
}
for (map { dirs('rw/upper', $_) } $workdir, $home, @folders) { own($_, $owner + 0) if $is_root }
umask 022;
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\n";
