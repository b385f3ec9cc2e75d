// Shifts the wall clock of a process: `node --import shift-clock.ts`. Only the wall clock changes; monotonic time and timers
// do not, as when the clock of a machine is set. libfaketime does the same for all clocks that Node reads, but is not on
// every machine.
import { readFileSync } from 'node:fs'

const file = process.env['POLAR_JEPSEN_CLOCK']
const RealDate = Date
let offsetMs = 0

function look(): void {
  try {
    offsetMs = Number(readFileSync(file ?? '', 'utf8')) || 0
  } catch {
    offsetMs = 0
  }
}

class ShiftedDate extends RealDate {
  constructor(...given: unknown[]) {
    super(...((given.length === 0 ? [RealDate.now() + offsetMs] : given) as [number]))
  }

  static override now(): number {
    return RealDate.now() + offsetMs
  }
}

if (file !== undefined) {
  look()
  setInterval(look, 50).unref()
  globalThis.Date = ShiftedDate as DateConstructor
}
