/** Attacks every API with hostile requests, and prints reports of its process and its neighbours. See CONTRIBUTING.md. */
import { parseArgs } from 'node:util'
import { type FuzzReport, runFuzz } from './run-fuzz.ts'
import { type SurfaceName, SURFACES } from './surfaces.ts'

const { values } = parseArgs({
  options: {
    count: { type: 'string', default: '10000' },
    'max-mb': { type: 'string', default: '64' },
    seed: { type: 'string', default: '1' },
    width: { type: 'string', default: '4' },
    surface: { type: 'string', multiple: true },
  },
})
const options = {
  seed: Number(values.seed),
  count: Number(values.count),
  maxBytes: Number(values['max-mb']) * 1024 ** 2,
  width: Number(values.width),
}
const surfaces = (values.surface as SurfaceName[] | undefined) ?? SURFACES
const reports: FuzzReport[] = []
for (const surface of surfaces) {
  const report = await runFuzz(surface, options)
  reports.push(report)
  process.stdout.write(`${JSON.stringify(report)}\n`)
}
console.table(
  reports.map(({ surface, attempts, defects, peakMemoryMb, neighbour }) => {
    return { surface, attempts, defects, peakMemoryMb, ...neighbour }
  }),
)
process.exitCode = reports.every(({ defects }) => defects === 0) ? 0 : 1
