import * as z from 'zod'
import { DEFAULT_EXCLUDE } from '../../grading/protected-files.ts'
import { InstanceRow } from './instance.ts'

/** NVIDIA Polar's settings of an evaluator for SWE-bench rows. */
export const HarnessConfig = z.strictObject({
  kind: z.literal('swebench_harness'),
  instance: InstanceRow.describe('A row of SWE-bench or SWE-Gym, as it is'),
  repo_dir: z.string().min(1).default('/testbed').describe('Where the repository is in a new sandbox'),
  patch_command: z
    .string()
    .min(1)
    .nullish()
    .describe("For bash in the agent's sandbox: prints the patch; absent: what git sees in repo_dir"),
  apply_timeout: z.number().positive().default(60).describe('Seconds for patch_command'),
  test_timeout: z.number().positive().default(1200).describe('Seconds for the tests; longer is a reward of 0'),
  exclude_patterns: z
    .array(z.string())
    .nullish()
    .describe('File patterns, besides the usual ones, that are no part of a patch'),
})
type HarnessConfig = z.infer<typeof HarnessConfig>

/** The same in the words of the evaluator `swebench`. */
export function toSwebenchConfig(config: HarnessConfig) {
  return {
    kind: 'swebench' as const,
    instance: config.instance,
    repo_dir: config.repo_dir,
    ...(config.patch_command == null ? {} : { patch_command: config.patch_command }),
    collect_timeout_seconds: config.apply_timeout,
    test_timeout_seconds: config.test_timeout,
    exclude: [...DEFAULT_EXCLUDE, ...(config.exclude_patterns ?? [])],
  }
}
