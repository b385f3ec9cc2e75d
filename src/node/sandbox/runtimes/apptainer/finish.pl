# Completes the tree that Apptainer mounted, before any command runs. Apptainer's own mounts become read-only (without root they
# would belong to the sandbox and would not be counted), and so do mounts below a read-only mount. Without root, the sandbox also
# gets its root folder here: in Apptainer's overlay, a removed directory of the image could not be created again, because
# Apptainer does not mount it with `userxattr`.
my ($target, $is_root, $owner, $inside, $mark, $workdir, $home, $parts, $layers) = splice @ARGV, 0, 9;
my (@hidden, %kinds);
while (@ARGV) {
  my ($kind, $path) = splice @ARGV, 0, 2;
  if ($kind eq 'hide') { push @hidden, $path } else { $kinds{$path} = $kind }
}
open(my $list, '<', "/proc/$target/mountinfo") or die "mountinfo: $!\n";
my @mounts = map {
  my ($front, $back) = split / - /;
  my ($id, $parent, $path, $options) = (split / /, $front)[0, 1, 4, 5];
  my ($type, $source) = split / /, $back;
  $path =~ s/\\([0-7]{3})/chr oct $1/ge;
  { id => $id, parent => $parent, path => $path, options => $options, type => $type, source => $source };
} <$list>;
# Of several mounts at one path only the last is visible.
%mounted = map { ($_->{path} => $_) } @mounts;
my @spaces = spaces($target, 'mnt');
enter(spaces($target, 'user')) unless $is_root;
enter(@spaces);
my %flags = (ro => 1, nosuid => 2, nodev => 4, noexec => 8, noatime => 0x400, nodiratime => 0x800, relatime => 0x200000);
for (values %mounted) {
  next if $_->{path} eq '/' || $_->{source} eq $mark || $_->{type} =~ /^(proc|devpts|mqueue)$/;
  next if kind($_->{path}) eq 'writable';
  my $kept = 0;
  $kept |= $flags{$_} // 0 for split /,/, $_->{options};
  call('mount', 'none', $_->{path}, 0, $REMOUNT | $BIND | $READ_ONLY | $kept, 0);
}
lay() if $parts;
call('mount', 'polar', $_, 'tmpfs', $READ_ONLY | $NO_SUID | $NO_DEVICES, 'size=4k,mode=0') for grep { -d } @hidden;
if ($is_root) {
  own($workdir, $owner + 0) if $workdir && -d $workdir && !-l $workdir;
  account('/etc/passwd', ":x:$inside:$inside:agent:$home:/bin/sh");
  account('/etc/group', ":x:$inside:");
}
# The mode of the closest requested mount. All other mounts are Apptainer's.
sub kind {
  my $path = shift;
  return 'writable' if $parts && $path eq "$parts/rw";
  my ($top) = sort { length $b <=> length $a } grep { $path eq $_ || index($path, "$_/") == 0 } keys %kinds;
  return defined $top ? $kinds{$top} : 'readonly';
}
sub lay {
  my $root = $mounted{'/'}{id};
  my $place = "$parts/rw/root";
  mkdir($place, 0755) or die "$place: $!\n";
  detach_mounts();
  my $lower = join ':', (map { "$parts/$_/upper" } 0 .. $layers - 1), '/';
  my $options = "lowerdir=$lower,upperdir=$parts/rw/upper,workdir=$parts/rw/work,userxattr";
  call('mount', 'overlay', $place, 'overlay', $NO_DEVICES, $options);
  for (grep { $_->{parent} == $root } @mounts) {
    my $path = $_->{path};
    call('mount', $path, "$place$path", 0, $MOVE, 0) if index("$path/", "$parts/") != 0;
  }
  chdir $place or die "$place: $!\n";
  call('pivot_root', '.', '.');
  call('umount2', '.', 2);
  chdir '/' or die "/: $!\n";
  rmdir for (map { "$parts/$_" } 'rw', 0 .. $layers - 1), $parts;
}
sub account {
  my ($path, $line) = @_;
  open(my $file, '+<', $path) or return;
  my $text = join '', <$file>;
  return if $text =~ /^[^:\n]*:[^:\n]*:$inside:/m;
  my $name = $text =~ /^agent:/m ? 'polar-agent' : 'agent';
  print $file ($text =~ /[^\n]\z/ ? "\n" : ''), "$name$line\n";
  close $file;
}
