import { chown, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { HOST_ENV } from './paths.ts'

/** Numbers of unshare, which differ; those of the newer calls are the same everywhere. */
const UNSHARE: Partial<Record<NodeJS.Architecture, number>> = { x64: 272, arm64: 97 }

/**
 * Program for the machine's Perl, as root: binds the folders LAYER_0 to LAYER_n, MAPPED of them, to /sys/l0 to /sys/ln. Files
 * of the user SHARED are files of the user OWN there, and the other way round; all others are whose they are. So sandboxes
 * with different users can start from the same snapshot (idmapped mounts, Linux 5.19 below an overlay).
 */
export const MAP_LAYERS = `
use strict;
my ($unshare, $shared, $own, $count) = map { $_ + 0 } @ENV{qw(UNSHARE SHARED OWN MAPPED)};
sub call {
  my ($what, $number, @rest) = @_;
  my $result = syscall($number, @rest);
  die "$what: $!\\n" if $result == -1;
  return $result;
}
sub put {
  my ($path, $text) = @_;
  open(my $file, '>', $path) or die "$path: $!\\n";
  syswrite($file, $text) // die "$path: $!\\n";
}
pipe(my $ready, my $ready_end);
pipe(my $done, my $done_end);
my $child = fork() // die "fork: $!\\n";
if ($child == 0) {
  close $done_end;
  call('unshare', $unshare, 0x10000000);
  syswrite($ready_end, 'x');
  sysread($done, my $nothing, 1);
  exit;
}
close $ready_end;
sysread($ready, my $word, 1) or die "no user namespace\\n";
my ($low, $high) = sort { $a <=> $b } $shared, $own;
my $last = 4294967294;
my @ranges = ([0, 0, $low], [$low, $high, 1], [$low + 1, $low + 1, $high - $low - 1], [$high, $low, 1], [$high + 1, $high + 1, $last - $high]);
put("/proc/$child/uid_map", join '', map { "@$_\\n" } grep { $_->[2] > 0 } @ranges);
put("/proc/$child/gid_map", "0 0 4294967295\\n");
open(my $users, '<', "/proc/$child/ns/user") or die "user namespace: $!\\n";
close $done_end;
waitpid $child, 0;
for my $n (0 .. $count - 1) {
  my ($source, $target, $empty) = ($ENV{"LAYER_$n"}, "/sys/l$n", '');
  my $tree = call('open_tree', 428, -100, $source, 0x80001);
  call('mount_setattr', 442, $tree, $empty, 0x1000, pack('Q4', 0x100000, 0, 0, fileno $users), 32);
  call('move_mount', 429, $tree, $empty, -100, $target, 4);
}
`

/** Variables for `MAP_LAYERS`, besides the layers. */
export function mapVariables(shared: number, own: number, count: number): Record<string, string> {
  const unshare = UNSHARE[process.arch] ?? 0
  return { UNSHARE: String(unshare), SHARED: String(shared), OWN: String(own), MAPPED: String(count) }
}

const TRY = `set -eu
mount -t tmpfs polar /sys
mkdir /sys/l0 /sys/upper /sys/work /sys/root
perl -e "$MAP_LAYERS"
mount -t overlay polar -o lowerdir=/sys/l0,upperdir=/sys/upper,workdir=/sys/work /sys/root
echo more >> /sys/root/file
stat -c %u /sys/root/file
`

/** Whether layers below `dir` can be mapped, by trying: depends on the kernel and the file system. */
export async function canMapLayers(dir: string, shared: number): Promise<boolean> {
  if (UNSHARE[process.arch] === undefined) return false
  const scratch = await mkdtemp(join(dir, 'map-'))
  try {
    const [layer, own] = [join(scratch, 'layer'), shared + 1]
    await mkdir(layer)
    await writeFile(join(layer, 'file'), '')
    await chown(join(layer, 'file'), shared, shared)
    const { exitCode, stdout } = await runProgram(
      ['unshare', '--mount', '--propagation', 'private', '/bin/sh', '-c', TRY],
      { env: { ...HOST_ENV, MAP_LAYERS, LAYER_0: layer, ...mapVariables(shared, own, 1) } },
    )
    return exitCode === 0 && stdout.trim() === String(own)
  } catch {
    return false
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
}
