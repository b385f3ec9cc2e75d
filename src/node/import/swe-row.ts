import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
import { TaskRequest, type AgentSpec } from '../../model/task.ts'
import { InstanceRow, toInstance } from '../../trajectory/evaluators/swebench/instance.ts'
import { imageCandidates } from '../../trajectory/evaluators/swebench/images.ts'
import type { RuntimeCapabilities } from '../sandbox/runtimes/runtime.ts'

/** Settings that are not part of a row: the agent and the runtime. */
export interface SweOptions {
  agent: z.input<typeof AgentSpec>
  runtime: { kind: string; capabilities: Pick<RuntimeCapabilities, 'images'> }
  /** Template of the image name. Absent: the name in the row, else the name of the public SWE-bench image. */
  image?: string
  /** Where a runtime without images gets repositories: this prefix and the row's `repo`. */
  repositories: string
  /** Other fields of the task request. */
  more?: Partial<Omit<z.input<typeof TaskRequest>, 'task_id' | 'instruction' | 'agent' | 'runtime' | 'evaluator'>>
}

/** The folder of the repository in the images of SWE-bench. */
const REPOSITORY_DIR = '/testbed'

const PromptRow = InstanceRow.extend({ problem_statement: z.string().min(1) })

/** Converts a row of SWE-bench and its variants to a task. Throws `config.invalid`. */
export function toSweTask(value: unknown, options: SweOptions): TaskRequest {
  const row = valid(PromptRow.safeParse(value))
  const instance = instanceOf(row)
  const { agent, runtime, image, repositories, more } = options
  const isImage = runtime.capabilities.images === 'required' || image !== undefined
  const images = imageCandidates({ ...row, instance_id: instance.id }, image === undefined ? undefined : [image])
  return valid(
    TaskRequest.safeParse({
      ...more,
      task_id: instance.id,
      instruction: row.problem_statement,
      agent,
      runtime: {
        backend: runtime.kind,
        workdir: REPOSITORY_DIR,
        ...(isImage
          ? { image: images[0] }
          : {
              prepare: [
                {
                  type: 'checkout',
                  repository: `${repositories}${instance.repo}`,
                  commit: instance.baseCommit,
                  target: REPOSITORY_DIR,
                },
              ],
            }),
      },
      evaluator: { strategy: 'swebench', config: { instance: value, repo_dir: REPOSITORY_DIR } },
      metadata: { ...more?.metadata, repo: instance.repo },
    }),
  )
}

function instanceOf(row: InstanceRow): ReturnType<typeof toInstance> {
  try {
    return toInstance(row)
  } catch (error) {
    throw new RolloutError('config.invalid', error instanceof Error ? error.message : String(error), { cause: error })
  }
}

function valid<T>(parsed: z.ZodSafeParseResult<T>): T {
  if (parsed.success) return parsed.data
  const issues = parsed.error.issues.map(({ path, message }) => `${path.join('.')}: ${message}`)
  throw new RolloutError('config.invalid', issues.join('; '))
}
