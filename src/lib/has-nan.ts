/** A plain loop: `some` with a function takes ten times as long, and this reads every sampled token there is. */
export function hasNaN(values: Float32Array): boolean {
  for (let i = 0; i < values.length; i++) if (Number.isNaN(values[i])) return true
  return false
}
