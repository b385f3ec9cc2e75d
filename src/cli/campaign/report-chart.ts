import { toVisibleLine } from '../../lib/visible-text.ts'
import type { CampaignReport } from './campaign-report.ts'

interface Bar {
  label: string
  attempts: number
  accepted: number
}

const MAX_BARS = 20
const ROW = 26
const LEFT = 240
const WIDTH = 480
const TOP = 56
const RIGHT = 120
const MAX_LABEL = 32

/** Renders a bar chart as SVG: attempts of each repository, and how many were accepted. */
export function renderChart({ repositories }: Pick<CampaignReport, 'repositories'>): string {
  const bars = toBars(repositories)
  const most = Math.max(1, ...bars.map(({ attempts }) => attempts))
  const height = TOP + bars.length * ROW + 16
  const width = LEFT + WIDTH + RIGHT
  const length = (count: number): string => ((count / most) * WIDTH).toFixed(1)
  const rows = bars.map(({ label, attempts, accepted }, index) => {
    const y = TOP + index * ROW
    return [
      `<text x="${LEFT - 10}" y="${y + 15}" text-anchor="end">${escape(label)}</text>`,
      `<rect x="${LEFT}" y="${y + 3}" width="${length(attempts)}" height="16" fill="#c8d3e0"/>`,
      `<rect x="${LEFT}" y="${y + 3}" width="${length(accepted)}" height="16" fill="#2f6fb0"/>`,
      `<text x="${LEFT + Number(length(attempts)) + 8}" y="${y + 15}">${accepted} of ${attempts}</text>`,
    ].join('\n')
  })
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="13" fill="#222">
<rect width="${width}" height="${height}" fill="#fff"/>
<text x="16" y="24" font-size="15" font-weight="bold">Attempts and accepted trajectories by repository</text>
<rect x="16" y="34" width="12" height="12" fill="#2f6fb0"/><text x="34" y="45">accepted</text>
<rect x="112" y="34" width="12" height="12" fill="#c8d3e0"/><text x="130" y="45">not accepted</text>
${rows.join('\n')}
</svg>
`
}

/** The repositories with the most attempts, and one bar for all others. */
function toBars(repositories: CampaignReport['repositories']): Bar[] {
  const bars = repositories.map(({ repository, attempts, accepted }) => ({ label: repository, attempts, accepted }))
  if (bars.length <= MAX_BARS) return bars
  const rest = bars.splice(MAX_BARS - 1)
  const sum = (pick: (bar: Bar) => number): number => rest.reduce((total, bar) => total + pick(bar), 0)
  const label = `${rest.length} other repositories`
  return [...bars, { label, attempts: sum(({ attempts }) => attempts), accepted: sum(({ accepted }) => accepted) }]
}

function escape(text: string): string {
  const line = toVisibleLine(text)
  const short = line.length > MAX_LABEL ? `…${line.slice(1 - MAX_LABEL)}` : line
  return short.toWellFormed().replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
}
