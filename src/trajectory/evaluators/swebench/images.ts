/** Image names of well-known datasets. The first image that exists is used. */
const TEMPLATES = [
  'swebench/sweb.eval.x86_64.{id_1776}:latest',
  'sweb.eval.x86_64.{id}:latest',
  'xingyaoww/sweb.eval.x86_64.{id_s}:latest',
  'ghcr.io/epoch-research/swe-bench.eval.x86_64.{raw_id}:latest',
]

export interface ImageRow {
  instance_id: string
  /** Rows of newer datasets name their image. */
  image?: unknown
  image_name?: unknown
  docker_image?: unknown
}

/**
 * Returns possible image names of a row, best first. Default: the names in the row, then those of public registries. In a
 * template, `{raw_id}` is the instance id, `{id}` the id in lower case, as registries require, `{id_1776}` and `{id_s}` the id
 * with `_1776_` and `_s_` instead of double underscores, which some registries reject, and `{owner}`, `{name}` and `{number}`
 * its parts.
 */
export function imageCandidates(row: ImageRow, templates?: readonly string[]): string[] {
  const own = [row.image, row.image_name, row.docker_image].filter((name) => typeof name === 'string' && name !== '')
  const names = (templates ?? TEMPLATES).map((template) => fill(template, row.instance_id))
  return [...new Set([...(templates === undefined ? (own as string[]) : []), ...names])]
}

function fill(template: string, instanceId: string): string {
  const id = instanceId.toLowerCase()
  const [, owner = '', name = '', number = ''] = /^(.+?)__(.+)-(\w+)$/.exec(id) ?? []
  const values: Record<string, string> = {
    raw_id: instanceId,
    id,
    id_1776: id.replaceAll('__', '_1776_'),
    id_s: id.replaceAll('__', '_s_'),
    owner,
    name,
    number,
  }
  return template.replaceAll(/\{(\w+)\}/g, (whole, key: string) => values[key] ?? whole)
}
