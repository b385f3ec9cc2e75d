// Preloaded into a process whose wall clock is to jump: `node --import shift-clock.ts`. Only what programs read from it is
// moved; time that passes, timers and all, is left alone, as it is when somebody sets a machine's clock. libfaketime does
// the same for all that Node reads of a clock, but is not on every machine.
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
