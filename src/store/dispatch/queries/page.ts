/** Of a list that was read one further than the page is long: where to go on, if there is more. */
export function cutPage<Row>(
  rows: readonly Row[],
  limit: number,
  toCursor: (row: Row) => string,
): { page: Row[]; next?: string } {
  const page = rows.slice(0, limit)
  const last = page.at(-1)
  return { page, ...(rows.length > limit && last !== undefined && { next: toCursor(last) }) }
}

/** Zero for a cursor that is not ours, which makes an empty page, or a first one. */
export function toNumber(text: string): number {
  const number = Number(text)
  return Number.isFinite(number) ? number : 0
}
