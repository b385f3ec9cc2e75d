import * as z from 'zod'
import { AtLeastOne, Path } from './fields.ts'

/** A value of an `#SBATCH` line. */
const Word = z.string().regex(/^[^\s\p{Cc}]+$/u, 'must be one word')

/** One line of a script. */
const Line = z.string().regex(/^[^\n\r\0]+$/, 'must be one line')

const Slurm = z.strictObject({
  partition: Word.optional().describe('`--partition`'),
  account: Word.optional().describe('`--account`'),
  qos: Word.optional().describe('`--qos`'),
  nodes: AtLeastOne.max(10_000).default(1).describe('Machines, each with one Polar node: the size of the job array'),
  time: z
    .string()
    .regex(/^(?:\d+|\d+:\d{2}(?::\d{2})?|\d+-\d+(?::\d{2}){0,2})$/, 'must be a Slurm time, such as 04:00:00')
    .optional()
    .describe('Time limit of a job, such as `04:00:00`; the node drains before it'),
  cpus: AtLeastOne.optional().describe('Cores of each machine'),
  memory: z
    .string()
    .regex(/^\d+[KMGT]?$/, 'must be a Slurm size, such as 64G')
    .optional()
    .describe('Memory of each machine, such as `64G`'),
  gres: Word.optional().describe('Generic resources of each machine, such as `gpu:8`'),
  sbatch: z
    .array(z.string().regex(/^--?[A-Za-z][^\n\r\0]*$/, 'must be an option of sbatch, such as --exclusive'))
    .default([])
    .describe('Further options of sbatch'),
  work_dir: Path.optional().describe(
    'Folder of the script and the logs, on storage that all machines share; absent: `slurm` in `data`',
  ),
  setup: z
    .array(Line)
    .default([])
    .describe('Commands that run before the node starts, such as `module load apptainer`'),
  requeue: z.boolean().default(true).describe('Restart the job on another machine if its machine fails'),
})
export type SlurmConfig = z.infer<typeof Slurm>

/** `polar cluster`. */
export const ClusterSection = z.strictObject({
  slurm: Slurm.prefault({}).describe('Slurm job array of nodes'),
})
