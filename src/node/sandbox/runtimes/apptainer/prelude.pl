# Subroutines of the programs that start a sandbox and enter it, for the machine's own Perl. No program of an image ever runs with
# privileges over the sandbox: a command could have replaced it. A program of the machine cannot be started from inside, where
# it does not exist; a running one can continue.
# %call has the numbers of system calls. Arguments that are numbers to the kernel must be numbers to Perl.
use strict;
my ($NEW_MOUNTS, $NEW_USERS, $NEW_PROCESSES) = (0x20000, 0x10000000, 0x20000000);
my ($READ_ONLY, $NO_SUID, $NO_DEVICES, $NO_EXEC, $REMOUNT, $BIND, $MOVE) = (1, 2, 4, 8, 0x20, 0x1000, 0x2000);
my ($RECURSIVE, $PRIVATE) = (0x4000, 0x40000);
my %mounted;
sub call {
  my ($name, @rest) = @_;
  my $result = syscall($main::call{$name}, @rest);
  die join(' ', $name, grep { m{^[\w/.:=,-]+$} } @rest) . ": $!\n" if $result == -1;
  return $result;
}
sub process { call('prctl', @_, (0) x (5 - @_)) }
sub spaces {
  my ($pid, @kinds) = @_;
  return map { open(my $file, '<', "/proc/$pid/ns/$_") or die "/proc/$pid/ns/$_: $!\n"; $file } @kinds;
}
sub enter { call('setns', fileno $_, 0) for @_ }
sub put {
  my ($path, $text) = @_;
  open(my $file, '>', $path) or die "$path: $!\n";
  syswrite($file, $text) // die "$path: $!\n";
  close $file;
}
# Gives up root of the machine. Our files in /proc must still belong to us afterwards.
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
# Keeps the capabilities with these numbers, also for started programs, and drops all others.
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
  for (grep { length } split m{/}, $path) { $at .= "/$_"; mkdir($at, 0755) || -d $at or die "$at: $!\n" }
  return $at;
}
# Changes the owner of a tree, except of mounts in it.
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
