# Enters all namespaces, drops all privileges, starts the command, waits for it and exits as it did. The session keyring of our
# login is replaced first, because keyrings belong to no namespace.
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
my $child = fork() // die "fork: $!\n";
if ($child == 0) { exec { $ARGV[0] } @ARGV or do { print STDERR "$ARGV[0]: $!\n"; exit 127 } }
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
