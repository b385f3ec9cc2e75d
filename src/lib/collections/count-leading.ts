/** Returns the number of leading indexes below `length` that match, by binary search: all matching indexes come first. */
export function countLeading(length: number, matches: (index: number) => boolean): number {
  let [low, high] = [0, length]
  while (low < high) {
    const middle = (low + high) >>> 1
    if (matches(middle)) low = middle + 1
    else high = middle
  }
  return low
}
