import { defineConfig } from 'vitest/config'

/** End to end as well, but without harness CLIs, containers or anything else that wants the machine for itself. */
const wire = [
  'checkouts',
  'commands',
  'crash',
  'deploy',
  'dispatch-crash',
  'dispatch-postgres',
  'drift',
  'engines',
  'evaluator-command',
  'evaluator-test-on-output',
  'evaluators',
  'exact-tokens',
  'export',
  'export-recipes',
  'export-schemas',
  'faults',
  'fidelity',
  'gateway',
  'harbor',
  'hostile',
  'jepsen',
  'jepsen-checker',
  'jepsen-parts',
  'nvidia-client',
  'python-sdks',
  'routes',
  'sdks',
  'server',
  'server-security',
  'slurm',
  'store-failure',
  'streaming',
  'swebench',
  'swebench-grading',
  'task-rm',
  'up',
  'uploads-crash',
  'worker',
].map((name) => `test/e2e/${name}.test.ts`)

export default defineConfig({
  test: {
    // Processes, not threads: tests start worker threads and load native addons of their own.
    pool: 'forks',
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['src/**/*.test.ts', 'test/*.test.ts'],
          // Properties with thousands of runs, on a machine that has other things to do as well.
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'e2e',
          include: ['test/e2e/**/*.test.ts'],
          exclude: wire,
          maxConcurrency: 3,
          testTimeout: 180_000,
          hookTimeout: 180_000,
          // Real harnesses and engines want the cores for themselves.
          fileParallelism: false,
        },
      },
      {
        extends: true,
        test: { name: 'wire', include: wire, testTimeout: 180_000, hookTimeout: 180_000, fileParallelism: false },
      },
      {
        extends: true,
        // Installs gigabytes of trainers on the first run, so `npm test` leaves it out: `npm run test:trainers`.
        test: { name: 'trainers', include: ['test/trainers/*.test.ts'], testTimeout: 3_600_000 },
      },
    ],
  },
})
