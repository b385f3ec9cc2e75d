# Holds the user namespace of commands: one user, without capabilities. It uses up the limit of one nested user namespace, so that
# commands cannot create another, which would give them access to more of the kernel. The arguments after the fifth limit what
# the kernel counts per user: pending signals, bytes of message queues, settings of /proc/sys/user.
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
print "ready\n";
idle();
