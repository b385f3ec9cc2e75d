# Creates a process namespace with a /proc of its own; all other namespaces are those of the sandbox. Its first process only
# reaps orphans.
my ($target, $is_root, $owner, $has_network, @covered) = @ARGV;
$| = 1;
my @spaces = spaces($target, 'ipc', 'uts', ($has_network ? 'net' : ()), 'mnt');
end_with_parent();
enter(spaces($target, 'user')) unless $is_root;
enter(@spaces);
call('unshare', $NEW_MOUNTS | $NEW_PROCESSES);
detach_mounts();
my $child = fork() // die "fork: $!\n";
if ($child == 0) {
  call('mount', 'proc', '/proc', 'proc', $NO_SUID | $NO_DEVICES | $NO_EXEC, 0);
  call('mount', '/dev/null', $_, 0, $BIND, 0) for grep { -e } @covered;
  # A process that may write to /proc can lower its out-of-memory score, unless it was raised with CAP_SYS_RESOURCE.
  call('mount', 'none', '/proc', 0, $REMOUNT | $BIND | $READ_ONLY | $NO_SUID | $NO_DEVICES | $NO_EXEC, 0);
  become($owner + 0) if $is_root;
  keep();
  end_with_parent();
  process(38, 1);
  print "ready\n";
  idle();
}
close STDOUT;
waitpid $child, 0;
