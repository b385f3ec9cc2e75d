/** A plain loop, because `some()` takes ten times as long and this function reads every sampled token. */
export function hasNaN(values: Float32Array): boolean {
  for (let i = 0; i < values.length; i++) if (Number.isNaN(values[i])) return true
  return false
}
