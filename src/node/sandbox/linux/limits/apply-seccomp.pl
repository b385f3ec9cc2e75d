# Arguments: numbers of prctl and keyctl, seccomp filter in hex, command line.
# Replaces the login's session keyring by an empty one, sets no_new_privs, installs the filter and becomes the command. All
# descendants inherit the filter. A failing keyctl (no keyring, or the quota of keyrings is used up) does no harm: the filter
# rejects all keyring calls.
my ($prctl, $keyctl, $filter) = (shift() + 0, shift() + 0, pack("H*", shift));
my $program = pack("Sx![P]P", length($filter) / 8, $filter);
syscall($keyctl, 1, 0);
syscall($prctl, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
syscall($prctl, 22, 2, $program) == 0 or die "seccomp: $!";
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!";
