/** Where the images of the well-known datasets are; the first that exists serves. */
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
 * Names under which the image of a row may be found, best first. Without templates those of the row itself and of the
 * public registries. In a template `{raw_id}` is the instance's id, `{id}` the same in lower case, which registries ask
 * for, `{id_1776}` and `{id_s}` that with `_1776_` and `_s_` for its double underscores, which some refuse, and
 * `{owner}`, `{name}` and `{number}` its parts.
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
