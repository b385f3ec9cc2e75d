import { writeFileSync } from 'node:fs'
import { mkdir, mkdtemp } from 'node:fs/promises'
import { join } from 'node:path'
import { createLogger } from '../../compose/create-logger.ts'
import { openTrainDemo } from '../../compose/open-train-demo.ts'
import { DEMO_OPTIONS, DEMO_RANK } from '../../train/demo-options.ts'
import { createLowRank } from '../../train/low-rank.ts'
import { summarise, toMarkdown, toSvg, type TrainReport } from '../../train/report.ts'
import { train, type StepReport, type TrainOptions } from '../../train/train.ts'
import { listenForInterrupt } from '../stop-signals.ts'
import { defineCommand, EXIT, option, parseNumber, toggle, type ExitCode } from '../command.ts'
import { NODE_FLAGS, VERBOSE_FLAG } from '../input/config-flags.ts'
import { renderCurve } from '../views/curve-view.ts'
import { print, printJson } from '../views/print.ts'
import { createScreen, renderBar } from '../views/screen.ts'

const DEFAULT_LAG = '1'

export const command = defineCommand({
  name: 'train-demo',
  description:
    'Train the tiny model by GRPO through the harness pi on this machine, and write a report. Needs "polar harness install pi".',
  flags: {
    seed: option('N', 'Seed of the initial weights and of all samples', { default: '1' }),
    steps: option('N', 'Updates of the weights', { default: '15' }),
    tasks: option('N', 'Tasks of each step', { default: '2' }),
    samples: option('N', 'Sessions of each task, whose rewards are compared', { default: '8' }),
    async: toggle('Sample the next step during an update'),
    'max-lag': option('N', 'With --async: how many versions behind a token may be', { default: DEFAULT_LAG }),
    out: option('DIR', 'Folder for a new folder with the report and the data of the run', {
      default: '.polar/train-demo',
    }),
    runtime: NODE_FLAGS.runtime,
    'harness-dir': NODE_FLAGS['harness-dir'],
    json: toggle('Print a line of JSON for each step'),
    verbose: VERBOSE_FLAG,
  },
  examples: ['polar train-demo', 'polar train-demo --seed 2 --async'],
  async run({ flags }): Promise<ExitCode> {
    const number = (flag: 'seed' | 'steps' | 'tasks' | 'samples' | 'max-lag', min: number, max: number) =>
      parseNumber('train-demo', flag, flags[flag], { min, max })
    const seed = number('seed', 0, 1000)
    const steps = number('steps', 1, 500)
    const [tasksPerStep, samples] = [number('tasks', 1, 64), number('samples', 2, 64)]
    const maxLag = flags.async ? number('max-lag', 1, 8) : 0
    const options: TrainOptions = { ...DEMO_OPTIONS, steps, maxLag }
    await mkdir(flags.out, { recursive: true })
    const folder = await mkdtemp(join(flags.out, `seed-${seed}-`))

    const reports: StepReport[] = []
    const rewards = () => reports.map(({ meanReward }) => meanReward)
    using stop = listenForInterrupt()
    const { signal } = stop
    let [state, ended] = ['Starting', 0]
    using screen = createScreen(
      () => [...renderCurve(rewards(), steps), `  ${state}  ${renderBar(ended, tasksPerStep * samples)}`],
      flags.json ? { isTTY: false, columns: 80, write: () => true } : process.stderr,
    )
    const startedAt = performance.now()
    await using demo = await openTrainDemo({
      data: join(folder, 'data'),
      seed,
      tasksPerStep,
      samples,
      maxLag,
      harnessDir: flags['harness-dir'],
      runtime: flags.runtime,
      env: process.env,
      signal,
      logger: createLogger(flags.verbose ? 'debug' : 'warn', {
        isTTY: false,
        write: (text: string) => screen.print(text),
      }),
      onPart: (part) => void (state = `Starting: ${part}`),
      onSession: () => void (ended += 1),
    })
    state = 'Step 1'
    const weights = createLowRank(DEMO_RANK, demo.shape, demo.random)
    const toReport = (): TrainReport => ({
      command: `polar train-demo --seed ${seed}${flags.async ? ` --async --max-lag ${maxLag}` : ''}`,
      seed,
      options: { ...options, rank: DEMO_RANK, tasksPerStep, samples },
      backend: demo.backend,
      steps: reports,
      seconds: (performance.now() - startedAt) / 1000,
    })
    const training = train(weights, options, {
      ...demo.deps,
      signal,
      now: () => performance.now(),
      onStep(report) {
        reports.push(report)
        // After every step, so that an interrupted run has a report.
        writeReport(folder, toReport())
        ended = Math.max(0, ended - report.sessions)
        state = `Step ${report.step + 1}`
        if (flags.json) printJson(report)
        else screen.print(renderStep(report))
      },
    })
    await training.catch((error: unknown) => {
      if (!signal.aborted) throw error
    })
    if (signal.aborted) return EXIT.interrupted
    screen[Symbol.dispose]()
    const { first, last, hasLearned } = summarise({ steps: reports })
    if (!flags.json) {
      print(`${renderCurve(rewards(), steps).join('\n')}\n\n`)
      print(
        `Mean reward of the first steps ${first.toFixed(3)}, of the last ${last.toFixed(3)}\nReport  ${join(folder, 'report.md')}\n`,
      )
    }
    return hasLearned ? EXIT.done : EXIT.failed
  },
})

function writeReport(folder: string, report: TrainReport): void {
  writeFileSync(join(folder, 'report.json'), `${JSON.stringify(report, undefined, 2)}\n`)
  writeFileSync(join(folder, 'report.md'), toMarkdown(report, 'curve.svg'))
  writeFileSync(join(folder, 'curve.svg'), toSvg(report))
}

const BAR = 12

function renderStep({ step, meanReward, trainedTokens, meanLag, maxLogprobError, seconds }: StepReport): string {
  const bar = '█'.repeat(Math.round(meanReward * BAR)).padEnd(BAR, '░')
  const facts = `${trainedTokens} tokens, lag ${meanLag.toFixed(2)}, error ${maxLogprobError.toExponential(0)}, ${seconds.toFixed(1)} s`
  return `step ${String(step).padStart(3)}  reward ${meanReward.toFixed(3)} ${bar} ${facts}\n`
}
