# Enters the mount namespace of Apptainer with the privileges to read all files that the sandbox wrote.
my ($target, $is_root) = splice @ARGV, 0, 2;
my @spaces = spaces($target, 'mnt');
enter(spaces($target, 'user')) unless $is_root;
enter(@spaces);
keep(0, 1, 2, 3) unless $is_root;
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\n";
