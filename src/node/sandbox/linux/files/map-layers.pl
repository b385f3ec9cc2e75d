# Runs as root. Binds the folders LAYER_0 to LAYER_n (MAPPED of them) to /sys/l0 to /sys/ln with the users SHARED and OWN
# swapped; all other owners stay as they are. Sandboxes with different users can so start from the same snapshot
# (idmapped mounts; below an overlay since Linux 5.19).
use strict;
my ($unshare, $shared, $own, $count) = map { $_ + 0 } @ENV{qw(UNSHARE SHARED OWN MAPPED)};
sub call {
  my ($what, $number, @rest) = @_;
  my $result = syscall($number, @rest);
  die "$what: $!\n" if $result == -1;
  return $result;
}
sub put {
  my ($path, $text) = @_;
  open(my $file, '>', $path) or die "$path: $!\n";
  syswrite($file, $text) // die "$path: $!\n";
}
pipe(my $ready, my $ready_end);
pipe(my $done, my $done_end);
my $child = fork() // die "fork: $!\n";
if ($child == 0) {
  close $done_end;
  call('unshare', $unshare, 0x10000000);
  syswrite($ready_end, 'x');
  sysread($done, my $nothing, 1);
  exit;
}
close $ready_end;
sysread($ready, my $word, 1) or die "no user namespace\n";
my ($low, $high) = sort { $a <=> $b } $shared, $own;
my $last = 4294967294;
my @ranges = ([0, 0, $low], [$low, $high, 1], [$low + 1, $low + 1, $high - $low - 1], [$high, $low, 1], [$high + 1, $high + 1, $last - $high]);
put("/proc/$child/uid_map", join '', map { "@$_\n" } grep { $_->[2] > 0 } @ranges);
put("/proc/$child/gid_map", "0 0 4294967295\n");
open(my $users, '<', "/proc/$child/ns/user") or die "user namespace: $!\n";
close $done_end;
waitpid $child, 0;
for my $n (0 .. $count - 1) {
  my ($source, $target, $empty) = ($ENV{"LAYER_$n"}, "/sys/l$n", '');
  my $tree = call('open_tree', 428, -100, $source, 0x80001);
  call('mount_setattr', 442, $tree, $empty, 0x1000, pack('Q4', 0x100000, 0, 0, fileno $users), 32);
  call('move_mount', 429, $tree, $empty, -100, $target, 4);
}
