# Arguments: number of sendmsg, backlog, ports. Does the same as listen.cjs, but starts in milliseconds where Node needs a tenth
# of a second. Sends each listening socket in the format of Node's IPC channel: one line of JSON with the file descriptor.
use Socket;
my ($sendmsg, $backlog, @ports) = map { $_ + 0 } @ARGV;
alarm 5;
open(my $channel, "+<&=", $ENV{NODE_CHANNEL_FD}) or die "channel: $!";
my @open;
for my $port (@ports) {
  socket(my $server, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
  setsockopt($server, SOL_SOCKET, SO_REUSEADDR, 1);
  bind($server, sockaddr_in($port, INADDR_LOOPBACK)) or die "port $port: $!";
  listen($server, $backlog) or die "port $port: $!";
  push @open, $server;
  my $line = qq({"cmd":"NODE_HANDLE","type":"net.Server","msg":{"port":$port}}\n);
  my $vector = pack("PQ", $line, length $line);
  my $rights = pack("Qlllx4", 20, 1, 1, fileno $server);
  my $message = pack("QQPQPQQ", 0, 0, $vector, 1, $rights, length $rights, 0);
  syscall($sendmsg, fileno $channel, $message, 0) == length $line or die "sendmsg: $!";
}
1 while sysread($channel, my $answer, 4096);
