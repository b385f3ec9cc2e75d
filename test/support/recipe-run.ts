import { spawnSync } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Trace } from '../../src/model/trajectory.ts'
import { loadRecipes } from './recipe.ts'
import { recordSet } from './recorded-set.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const main = join(root, 'src/cli/main.ts')

/** Data of a sample as read by a recipe. */
export interface RecipeRow {
  ids: number[]
  /** Positions of the trained tokens, and their log probabilities. */
  trained: number[]
  logprobs: number[]
  reward?: number | null
  group?: string | number
  [more: string]: unknown
}

/** A folder with recorded sessions and their rewards, in which the recipes of docs/export.md run unchanged. */
export class RecipeFolder implements AsyncDisposable {
  readonly #path: string
  /** The samples of the recorded sessions, as `--format jsonl` writes them. */
  readonly traces: readonly Trace[]

  private constructor(path: string, traces: readonly Trace[]) {
    this.#path = path
    this.traces = traces
  }

  static async create(): Promise<RecipeFolder> {
    const path = await mkdtemp(join(tmpdir(), 'polar-recipes-'))
    const dir = join(path, 'sessions')
    const ids = await recordSet({ dir, sessions: 6, turns: 3, addedIds: 12, sampledIds: 5, seed: 3 })
    const scores = ids.map((id, i) => ({ session_id: id, outcome_reward: (i % 4) / 4, group_id: i < 3 ? '7' : '8' }))
    await writeFile(join(path, 'rewards.jsonl'), scores.map((score) => `${JSON.stringify(score)}\n`).join(''))
    runExport(path, 'all --format jsonl --to samples.jsonl --rewards rewards.jsonl --advantages grpo'.split(' '))
    const lines = (await readFile(join(path, 'samples.jsonl'), 'utf8')).trimEnd().split('\n')
    return new RecipeFolder(
      path,
      lines.map((line) => JSON.parse(line) as Trace),
    )
  }

  /** The row that every reader must find for each sample. */
  expectedRows(): Required<Pick<RecipeRow, 'ids' | 'trained' | 'logprobs' | 'reward' | 'group'>>[] {
    return this.traces.map((trace) => {
      const { prompt_ids: prompt, response_ids: response, loss_mask: mask, response_logprobs: logprobs } = trace
      const trained = mask.flatMap((value, at) => (value === 1 ? [at] : []))
      return {
        ids: [...prompt, ...response],
        trained: trained.map((at) => prompt.length + at),
        logprobs: trained.map((at) => logprobs![at]!),
        reward: trace.reward ?? null,
        group: trace.metadata['group_id'] as string,
      }
    })
  }

  /**
   * Runs the recipe's export command, then its code followed by `recipe-readers/<format>.py`, which reads the recipe's
   * variables and prints the rows as the last line. `prelude` runs before the recipe.
   */
  async run(
    format: string,
    python: string,
    { prelude = '', args = [] }: { prelude?: string; args?: readonly string[] } = {},
  ): Promise<RecipeRow[]> {
    const recipe = loadRecipes().get(format)
    if (recipe === undefined) throw new Error(`docs/export.md has no recipe for ${format}`)
    runExport(this.#path, recipe.command)
    const reader = await readFile(join(root, 'test/support/recipe-readers', `${format}.py`), 'utf8')
    const script = join(this.#path, `run_${format}.py`)
    await writeFile(script, [prelude, recipe.code, reader].join('\n'))
    const env = { ...process.env, CUDA_VISIBLE_DEVICES: '', HF_HUB_OFFLINE: '1', TRL_EXPERIMENTAL_SILENCE: '1' }
    const run = spawnSync(python, [script, ...args], { cwd: this.#path, encoding: 'utf8', maxBuffer: 2 ** 28, env })
    if (run.status !== 0) throw new Error(`the recipe for ${format} failed:\n${run.stderr.slice(-4000)}`)
    return JSON.parse(run.stdout.trimEnd().split('\n').at(-1)!) as RecipeRow[]
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#path, { recursive: true, force: true })
  }
}

function runExport(cwd: string, args: readonly string[]): void {
  const command = [main, 'export', ...args, '--from', join(cwd, 'sessions')]
  const run = spawnSync(process.execPath, command, { cwd, encoding: 'utf8' })
  if (run.status !== 0) throw new Error(`polar export ${args.join(' ')} failed:\n${run.stderr}`)
}
