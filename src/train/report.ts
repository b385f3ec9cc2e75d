import { mean, type StepReport, type TrainOptions } from './train.ts'

/** Result of a training run, as `report.json` has it. */
export interface TrainReport {
  command: string
  seed: number
  options: TrainOptions & { rank: number; tasksPerStep: number; samples: number }
  backend: string | undefined
  steps: readonly StepReport[]
  seconds: number
}

const WINDOW = 5
/** By how much the mean reward of the last steps must exceed that of the first. */
const MARGIN = 0.15

/** Compares the mean reward of the first and the last five steps, or thirds of a shorter run. */
export function summarise({ steps }: Pick<TrainReport, 'steps'>): { first: number; last: number; hasLearned: boolean } {
  const window = Math.max(1, Math.min(WINDOW, Math.floor(steps.length / 3)))
  const first = mean(steps.slice(0, window).map(({ meanReward }) => meanReward))
  const last = mean(steps.slice(-window).map(({ meanReward }) => meanReward))
  return { first, last, hasLearned: last >= first + MARGIN }
}

/** The report as a page. `curve` is the path of the picture. */
export function toMarkdown(report: TrainReport, curve: string): string {
  const { steps, options, seconds } = report
  const { first, last } = summarise(report)
  const lags = steps.map(({ maxLag }) => maxLag)
  const facts = [
    ['seed', String(report.seed)],
    ['mean reward, first five steps', first.toFixed(3)],
    ['mean reward, last five steps', last.toFixed(3)],
    ['sessions', String(steps.reduce((sum, { sessions }) => sum + sessions, 0))],
    ['trained tokens', String(steps.reduce((sum, { trainedTokens }) => sum + trainedTokens, 0))],
    [
      'largest error of a captured log probability',
      Math.max(...steps.map((step) => step.maxLogprobError)).toExponential(1),
    ],
    [
      'staleness: mean, largest',
      `${mean(steps.map(({ meanLag }) => meanLag)).toFixed(2)}, ${Math.max(...lags)} versions`,
    ],
    ['seconds', seconds.toFixed(0)],
    ['backend', report.backend ?? 'unknown'],
  ]
  const rows = steps.map((step) => [
    String(step.step),
    step.meanReward.toFixed(3),
    String(step.trainedTokens),
    step.meanLag.toFixed(2),
    String(step.maxLag),
    step.meanRatio.toFixed(3),
    step.clipped.toFixed(3),
    step.divergence.toFixed(4),
    step.maxLogprobError.toExponential(1),
    step.seconds.toFixed(1),
  ])
  const heading = [
    'step',
    'reward',
    'tokens',
    'mean lag',
    'max lag',
    'ratio',
    'clipped',
    'divergence',
    'logprob error',
    's',
  ]
  return [
    `# ${report.command}`,
    '',
    `![Mean reward of each step](${curve})`,
    '',
    toTable([['', ''], ...facts]),
    '',
    '## Steps',
    '',
    toTable([heading, ...rows]),
    '',
    '## Configuration',
    '',
    '```json',
    JSON.stringify(options, undefined, 2),
    '```',
    '',
  ].join('\n')
}

function toTable([heading = [], ...rows]: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  return [line(heading), line(heading.map(() => '---')), ...rows.map(line)].join('\n')
}

const SIZE = { width: 720, height: 320, left: 48, right: 16, top: 40, bottom: 40 }

/** The reward of each step as an SVG picture. */
export function toSvg({ command, steps }: Pick<TrainReport, 'command' | 'steps'>): string {
  const { width, height, left, right, top, bottom } = SIZE
  const x = (i: number) => left + ((width - left - right) * i) / Math.max(1, steps.length - 1)
  const y = (value: number) => height - bottom - (height - top - bottom) * value
  const points = steps.map(({ meanReward }, i) => `${x(i).toFixed(1)},${y(meanReward).toFixed(1)}`)
  const grid = [0, 0.25, 0.5, 0.75, 1].map(
    (value) =>
      `<line x1="${left}" x2="${width - right}" y1="${y(value)}" y2="${y(value)}" stroke="#8884"/>` +
      `<text x="${left - 8}" y="${y(value) + 4}" text-anchor="end">${value}</text>`,
  )
  const labels = steps.flatMap(({ step }, i) =>
    step === 1 || step % 5 === 0
      ? [`<text x="${x(i)}" y="${height - bottom + 18}" text-anchor="middle">${step}</text>`]
      : [],
  )
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12" fill="#888">`,
    `<text x="${left}" y="22" font-size="14">${escapeXml(command)}: mean reward of each step</text>`,
    ...grid,
    ...labels,
    `<text x="${(left + width - right) / 2}" y="${height - 6}" text-anchor="middle">step</text>`,
    `<polyline fill="none" stroke="#2a7" stroke-width="2" points="${points.join(' ')}"/>`,
    ...points.map((point) => {
      const [cx, cy] = point.split(',')
      return `<circle cx="${cx}" cy="${cy}" r="3" fill="#2a7"/>`
    }),
    '</svg>',
    '',
  ].join('\n')
}

function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}
