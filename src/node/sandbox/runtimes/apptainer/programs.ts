/**
 * What leads into a sandbox, as programs for the machine's own Perl. No program of an image is ever run with rights over
 * the sandbox: a command could have put its own in that place. And a program of the machine cannot be started once we are
 * inside, where it is not to be found; one that is running already can go on.
 *
 * `%call` has the numbers of system calls. Arguments that are numbers to the kernel must be numbers to Perl.
 */
export const PRELUDE = `
use strict;
my ($NEW_MOUNTS, $NEW_USERS, $NEW_PROCESSES) = (0x20000, 0x10000000, 0x20000000);
my ($READ_ONLY, $NO_SUID, $NO_DEVICES, $NO_EXEC, $REMOUNT, $BIND, $MOVE) = (1, 2, 4, 8, 0x20, 0x1000, 0x2000);
my ($RECURSIVE, $PRIVATE) = (0x4000, 0x40000);
my %mounted;
sub call {
  my ($name, @rest) = @_;
  my $result = syscall($main::call{$name}, @rest);
  die join(' ', $name, grep { m{^[\\w/.:=,-]+$} } @rest) . ": $!\\n" if $result == -1;
  return $result;
}
sub process { call('prctl', @_, (0) x (5 - @_)) }
sub spaces {
  my ($pid, @kinds) = @_;
  return map { open(my $file, '<', "/proc/$pid/ns/$_") or die "/proc/$pid/ns/$_: $!\\n"; $file } @kinds;
}
sub enter { call('setns', fileno $_, 0) for @_ }
sub put {
  my ($path, $text) = @_;
  open(my $file, '>', $path) or die "$path: $!\\n";
  syswrite($file, $text) // die "$path: $!\\n";
  close $file;
}
# Being root of the machine ends here. What /proc has about us must still be ours afterwards.
sub become {
  my $id = shift;
  call('setgroups', 0, 0);
  call('setresgid', $id, $id, $id);
  call('setresuid', $id, $id, $id);
  process(4, 1);
}
sub map_users {
  my ($inside_user, $inside_group, $more) = @_;
  my ($user, $group) = ($> + 0, $) + 0);
  call('unshare', $NEW_USERS | ($more // 0));
  put('/proc/self/setgroups', 'deny');
  put('/proc/self/uid_map', "$inside_user $user 1");
  put('/proc/self/gid_map', "$inside_group $group 1");
}
# Those capabilities, by number, stay, also with what is started; all others go.
sub keep {
  my $set = 0;
  $set |= 1 << $_ for @_;
  call('capset', pack('LL', 0x20080522, 0), pack('L6', $set, $set, $set, 0, 0, 0));
  process(47, 2, $_) for @_;
}
sub end_with_parent { process(1, 9) }
sub detach_mounts { call('mount', 'none', '/', 0, $RECURSIVE | $PRIVATE, 0) }
sub dirs {
  my ($at, $path) = @_;
  for (grep { length } split m{/}, $path) { $at .= "/$_"; mkdir($at, 0755) || -d $at or die "$at: $!\\n" }
  return $at;
}
# Gives a tree away, but nothing that is only mounted there.
sub own {
  my ($path, $owner) = @_;
  return if $mounted{$path};
  my ($user, $group) = (lstat $path)[4, 5];
  return if !defined $user;
  call('fchownat', -100, $path, $owner, $owner, 0x100) if $user != $owner || $group != $owner;
  return if -l $path || !-d $path;
  opendir(my $folder, $path) or return;
  my @names = grep { $_ ne '.' && $_ ne '..' } readdir $folder;
  closedir $folder;
  own("$path/$_", $owner) for @names;
}
sub idle {
  $0 = 'polar';
  close STDOUT;
  close STDERR;
  $SIG{CHLD} = 'IGNORE';
  sleep 1000000 while 1;
}
`

/**
 * Makes what belongs to one sandbox only, in mounts that vanish with it, and becomes Apptainer. The memory file system is
 * named so that whatever runs in the sandbox can be found. Everything of the sandbox is the first choice of the kernel's
 * out-of-memory killer. Directories come to be in the upper layer, which is still
 * empty: nothing that anybody left behind can lead them elsewhere.
 */
export const LAUNCH = `
my ($name, $folder, $shared, $disk, $memory, $workdir, $home, $owner, $is_root, $count, $owned) = splice @ARGV, 0, 11;
my @targets = splice @ARGV, 0, $count;
my @folders = splice @ARGV, 0, $owned;
umask 0;
put('/proc/self/oom_score_adj', '1000');
chdir $folder or die "$folder: $!\\n";
$is_root ? call('unshare', $NEW_MOUNTS) : map_users($> + 0, $) + 0, $NEW_MOUNTS);
detach_mounts();
mkdir('rw', 0755) || -d 'rw' or die "rw: $!\\n";
call('mount', $name, "$folder/rw", 'tmpfs', $NO_SUID | $NO_DEVICES, "mode=755,size=\${disk}m") if $disk;
mkdir($_, 0755) || die "$_: $!\\n" for 'rw/upper', 'rw/work', $shared;
call('mount', $name, "$folder/$shared", 'tmpfs', $NO_SUID | $NO_DEVICES, 'mode=1777' . ($memory ? ",size=\${memory}m" : '')) unless $disk;
chmod 01777, $shared, dirs('rw/upper', 'tmp'), dirs('rw/upper', 'var/tmp');
for (@targets) {
  my ($kind, $parent, $name) = m{^(.)(.*)/([^/]+)$}s or die "$_ is no target\\n";
  my $place = dirs('rw/upper', $parent);
  if ($kind eq 'd') { dirs($place, $name) } else { open(my $file, '>>', "$place/$name") or die "$parent/$name: $!\\n" }
}
for (map { dirs('rw/upper', $_) } $workdir, $home, @folders) { own($_, $owner + 0) if $is_root }
umask 022;
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\\n";
`

/**
 * Holds the user namespace that commands run in: one user, without capabilities. It takes the only place there is, so
 * that nobody inside can make another and with it reach more of the kernel. The arguments after the fifth limit what the
 * kernel counts per user: pending signals, bytes of message queues, and settings of `/proc/sys/user`.
 */
export const HOLD_USERS = `
my ($target, $is_root, $owner, $inside_user, $inside_group, $signals, $queues, @quotas) = @ARGV;
$| = 1;
$is_root ? become($owner + 0) : enter(spaces($target, 'user'));
map_users(0, 0);
put('/proc/sys/user/max_user_namespaces', '1');
for (@quotas) { my ($name, $value) = split /=/; put("/proc/sys/user/$name", $value) if -e "/proc/sys/user/$name" }
for ([11, $signals], [12, $queues]) { my ($kind, $limit) = @$_; call('prlimit64', 0, $kind, pack('QQ', $limit, $limit), 0) if $limit }
map_users($inside_user, $inside_group);
keep();
end_with_parent();
print "ready\\n";
idle();
`

/**
 * Finishes what Apptainer put together, before any command has run. Its own mounts become read-only: as an ordinary user
 * they would be the sandbox's, and uncounted. So do mounts below one that was asked for read-only. An ordinary user's
 * sandbox also gets its root here: in the one that Apptainer makes, a directory of the image that was removed could not be
 * made again, because it does not tell the kernel that marks of layers are to be such as a user may write.
 */
export const FINISH = `
my ($target, $is_root, $owner, $inside, $mark, $workdir, $home, $parts, $layers) = splice @ARGV, 0, 9;
my (@hidden, %kinds);
while (@ARGV) {
  my ($kind, $path) = splice @ARGV, 0, 2;
  if ($kind eq 'hide') { push @hidden, $path } else { $kinds{$path} = $kind }
}
open(my $list, '<', "/proc/$target/mountinfo") or die "mountinfo: $!\\n";
my @mounts = map {
  my ($front, $back) = split / - /;
  my ($id, $parent, $path, $options) = (split / /, $front)[0, 1, 4, 5];
  my ($type, $source) = split / /, $back;
  $path =~ s/\\\\([0-7]{3})/chr oct $1/ge;
  { id => $id, parent => $parent, path => $path, options => $options, type => $type, source => $source };
} <$list>;
# Of several at one place only the last can be reached.
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
# As the closest mount was asked for. All others are Apptainer's.
sub kind {
  my $path = shift;
  return 'writable' if $parts && $path eq "$parts/rw";
  my ($top) = sort { length $b <=> length $a } grep { $path eq $_ || index($path, "$_/") == 0 } keys %kinds;
  return defined $top ? $kinds{$top} : 'readonly';
}
sub lay {
  my $root = $mounted{'/'}{id};
  my $place = "$parts/rw/root";
  mkdir($place, 0755) or die "$place: $!\\n";
  detach_mounts();
  my $lower = join ':', (map { "$parts/$_/upper" } 0 .. $layers - 1), '/';
  my $options = "lowerdir=$lower,upperdir=$parts/rw/upper,workdir=$parts/rw/work,userxattr";
  call('mount', 'overlay', $place, 'overlay', $NO_DEVICES, $options);
  for (grep { $_->{parent} == $root } @mounts) {
    my $path = $_->{path};
    call('mount', $path, "$place$path", 0, $MOVE, 0) if index("$path/", "$parts/") != 0;
  }
  chdir $place or die "$place: $!\\n";
  call('pivot_root', '.', '.');
  call('umount2', '.', 2);
  chdir '/' or die "/: $!\\n";
  rmdir for (map { "$parts/$_" } 'rw', 0 .. $layers - 1), $parts;
}
sub account {
  my ($path, $line) = @_;
  open(my $file, '+<', $path) or return;
  my $text = join '', <$file>;
  return if $text =~ /^[^:\\n]*:[^:\\n]*:$inside:/m;
  my $name = $text =~ /^agent:/m ? 'polar-agent' : 'agent';
  print $file ($text =~ /[^\\n]\\z/ ? "\\n" : ''), "$name$line\\n";
  close $file;
}
`

/** A process namespace with its own view of /proc; all else is the sandbox's. Its first process reaps, and does no more. */
export const ROOM = `
my ($target, $is_root, $owner, $has_network, @covered) = @ARGV;
$| = 1;
my @spaces = spaces($target, 'ipc', 'uts', ($has_network ? 'net' : ()), 'mnt');
end_with_parent();
enter(spaces($target, 'user')) unless $is_root;
enter(@spaces);
call('unshare', $NEW_MOUNTS | $NEW_PROCESSES);
detach_mounts();
my $child = fork() // die "fork: $!\\n";
if ($child == 0) {
  call('mount', 'proc', '/proc', 'proc', $NO_SUID | $NO_DEVICES | $NO_EXEC, 0);
  call('mount', '/dev/null', $_, 0, $BIND, 0) for grep { -e } @covered;
  # A process that may write to /proc can lower its out-of-memory score, unless it was raised with CAP_SYS_RESOURCE.
  call('mount', 'none', '/proc', 0, $REMOUNT | $BIND | $READ_ONLY | $NO_SUID | $NO_DEVICES | $NO_EXEC, 0);
  become($owner + 0) if $is_root;
  keep();
  end_with_parent();
  process(38, 1);
  print "ready\\n";
  idle();
}
close STDOUT;
waitpid $child, 0;
`

/**
 * Goes all the way in, gives up every right on the way, and waits for what it has started there; ends as that does. The
 * keys of our login are left behind first: they belong to no namespace.
 */
export const ENTER = `
my ($target, $users, $is_root, $owner, $has_network, $filter) = splice @ARGV, 0, 6;
my @spaces = spaces($target, 'ipc', 'uts', ($has_network ? 'net' : ()), 'pid', 'mnt');
my @inner = spaces($users, 'user');
syscall($main::call{keyctl}, 1, 0);
enter(spaces($target, 'user')) unless $is_root;
enter(@spaces);
become($owner + 0) if $is_root;
enter(@inner);
for (0 .. 63) { last if syscall($main::call{prctl}, 24, $_, 0, 0, 0) == -1 }
keep();
process(4, 0);
process(38, 1);
my $instructions = pack('H*', $filter);
process(22, 2, pack('Sx![P]P', length($instructions) / 8, $instructions));
my $child = fork() // die "fork: $!\\n";
if ($child == 0) { exec { $ARGV[0] } @ARGV or do { print STDERR "$ARGV[0]: $!\\n"; exit 127 } }
my @polite = qw(INT HUP TERM PIPE);
$SIG{$_} = 'IGNORE' for @polite;
waitpid $child, 0;
my $ending = $?;
if ($ending & 127) {
  $SIG{$_} = 'DEFAULT' for @polite;
  kill $ending & 127, $$;
  sleep 1;
}
exit($ending >> 8);
`

/** To where Apptainer itself is, with the rights to read whatever the sandbox wrote. */
export const VISIT = `
my ($target, $is_root) = splice @ARGV, 0, 2;
my @spaces = spaces($target, 'mnt');
enter(spaces($target, 'user')) unless $is_root;
enter(@spaces);
keep(0, 1, 2, 3) unless $is_root;
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\\n";
`
