import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { BaseSequencer, type TestSpecification } from 'vitest/node'
import { defineConfig } from 'vitest/config'

/** The files that take longest, the slowest first. They start first, so that no worker is left with one at the end. */
const SLOWEST = [
  'harness-matrix',
  'jepsen',
  'graded-tasks',
  'up',
  'attacks-docker',
  'attacks-apptainer',
  'attacks',
  'docs',
  'runtimes-kubernetes',
  'node-crash',
  'worker',
  'export',
  'run-command',
  'campaign',
  'runtimes-user',
  'runtimes-rootless',
  'runtimes',
  'nvidia-examples',
  'harness-sandbox',
  'harness-mcp',
  'runtimes-docker',
  'swebench',
  'nvidia-strict',
  'escape-docker',
]

class SlowestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rankOf = ({ moduleId }: TestSpecification) => {
      const rank = SLOWEST.findIndex((name) => moduleId.endsWith(`/${name}.test.ts`))
      return rank === -1 ? SLOWEST.length : rank
    }
    return (await super.sort(files)).toSorted((one, other) => rankOf(one) - rankOf(other))
  }
}

export default defineConfig({
  test: {
    // Processes, not threads: tests start worker threads and load native addons of their own.
    pool: 'forks',
    sequence: { sequencer: SlowestFirst },
    // Tests start hundreds of programs from the same sources; Node strips the types and compiles each file once.
    env: { NODE_COMPILE_CACHE: join(import.meta.dirname, '.polar/compile-cache') },
    // The same where CI is set and where it is not.
    allowOnly: false,
    // A poll ends when its condition holds; the default limit of one second depends on the machine's speed.
    expect: { poll: { timeout: 30_000 } },
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['src/**/*.test.ts', 'packages/*/src/**/*.test.ts', 'test/*.test.ts'],
          maxWorkers: availableParallelism(),
          // Properties with thousands of runs, on a machine that has other things to do as well.
          testTimeout: 300_000,
          hookTimeout: 120_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'e2e',
          include: ['test/e2e/**/*.test.ts'],
          // These tests wait for processes and timers half of the time.
          maxWorkers: availableParallelism() + 2,
          maxConcurrency: 3,
          testTimeout: 300_000,
          hookTimeout: 180_000,
        },
      },
      {
        extends: true,
        // Installs gigabytes of trainers on the first run, so `npm test` leaves it out: `npm run test:trainers`.
        test: { name: 'trainers', include: ['test/trainers/*.test.ts'], testTimeout: 3_600_000 },
      },
      {
        extends: true,
        // Installs and starts real inference engines, so `npm test` leaves it out: `npm run test:engines`.
        test: {
          name: 'engines',
          include: ['test/engines/*.test.ts'],
          // Two engines at once would only slow each other down.
          fileParallelism: false,
          testTimeout: 3_600_000,
          hookTimeout: 7_200_000,
        },
      },
    ],
  },
})
