/** Cuts rows that were read with one row more than the page holds; `next` is the cursor of the last row if there is more. */
export function cutPage<Row>(
  rows: readonly Row[],
  limit: number,
  toCursor: (row: Row) => string,
): { page: Row[]; next?: string } {
  const page = rows.slice(0, limit)
  const last = page.at(-1)
  return { page, next: rows.length > limit && last !== undefined ? toCursor(last) : undefined }
}

/** Zero for a malformed cursor, which yields an empty page or the first one. */
export function toNumber(text: string): number {
  const number = Number(text)
  return Number.isFinite(number) ? number : 0
}
