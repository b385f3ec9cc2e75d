import * as z from 'zod'
import { DEFAULT_EXCLUDE } from '../../grading/protected-files.ts'
import { InstanceRow } from './instance.ts'

/** NVIDIA Polar's settings of an evaluator for SWE-bench rows. */
export const HarnessConfig = z.strictObject({
  kind: z.literal('swebench_harness'),
  instance: InstanceRow.describe('Unchanged row of SWE-bench or SWE-Gym'),
  repo_dir: z.string().min(1).default('/testbed').describe('Path of the repository in a new sandbox'),
  patch_command: z
    .string()
    .min(1)
    .nullish()
    .describe(
      "Shell command for bash in the agent's sandbox that prints the patch; absent: the changes that git reports in repo_dir",
    ),
  apply_timeout: z.number().positive().default(60).describe('Seconds for patch_command'),
  test_timeout: z.number().positive().default(1200).describe('Seconds for the tests; a longer run gets a reward of 0'),
  exclude_patterns: z.array(z.string()).nullish().describe('Further file patterns that are not part of a patch'),
})
type HarnessConfig = z.infer<typeof HarnessConfig>

/** Returns the settings of the evaluator `swebench`. */
export function toSwebenchConfig(config: HarnessConfig) {
  return {
    kind: 'swebench' as const,
    instance: config.instance,
    repo_dir: config.repo_dir,
    patch_command: config.patch_command ?? undefined,
    collect_timeout_seconds: config.apply_timeout,
    test_timeout_seconds: config.test_timeout,
    exclude: [...DEFAULT_EXCLUDE, ...(config.exclude_patterns ?? [])],
  }
}
