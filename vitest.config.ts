import { defineConfig } from 'vitest/config'

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
          testTimeout: 180_000,
          hookTimeout: 180_000,
          // Real harnesses and engines want the cores for themselves.
          fileParallelism: false,
        },
      },
    ],
  },
})
