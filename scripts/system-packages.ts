import { execFileSync } from 'node:child_process'

interface SystemPackage {
  /** Its name for apt-get. */
  name: string
  /** A program of it; when that is there, nothing is installed. */
  program: string
  /** The tests that skip without it. */
  neededBy: string
}

const systemPackages: readonly SystemPackage[] = [
  { name: 'python3-venv', program: 'python3', neededBy: 'test/e2e/python-sdks.test.ts' },
  { name: 'bubblewrap', program: 'bwrap', neededBy: 'test/e2e/runtimes.test.ts' },
  { name: 'podman', program: 'podman', neededBy: 'test/e2e/runtimes-docker.test.ts' },
  { name: 'runc', program: 'runc', neededBy: 'test/e2e/runtimes-docker.test.ts' },
  { name: 'uidmap', program: 'newuidmap', neededBy: 'test/e2e/runtimes-rootless.test.ts' },
  // Its programs are not on the path but for this one, which starts them.
  { name: 'postgresql', program: 'pg_ctlcluster', neededBy: 'test/e2e/dispatch-postgres.test.ts' },
  { name: 'golang-go', program: 'go', neededBy: 'test/e2e/graded-tasks.test.ts' },
  { name: 'munge', program: 'munged', neededBy: 'test/e2e/slurm.test.ts' },
  { name: 'slurmctld', program: 'slurmctld', neededBy: 'test/e2e/slurm.test.ts' },
  { name: 'slurmd', program: 'slurmd', neededBy: 'test/e2e/slurm.test.ts' },
  { name: 'slurm-client', program: 'sbatch', neededBy: 'test/e2e/slurm.test.ts' },
  { name: 'systemd', program: 'systemd-analyze', neededBy: 'test/e2e/deploy.test.ts' },
]

/** Only as root in CI: nobody's own machine is changed by running the tests. */
export function installSystemPackages(): void {
  if (process.env['CI'] !== 'true' || process.getuid?.() !== 0) return
  const missing = systemPackages.filter(({ program }) => !isInstalled(program))
  if (missing.length === 0) return
  for (const { name, neededBy } of missing) console.log(`installing ${name} for ${neededBy}`)
  const options = { stdio: 'inherit', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } } as const
  execFileSync('apt-get', ['update', '-qq'], options)
  execFileSync(
    'apt-get',
    ['install', '-y', '-qq', '--no-install-recommends', ...missing.map(({ name }) => name)],
    options,
  )
}

function isInstalled(program: string): boolean {
  try {
    execFileSync('which', [program], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}
