import { RolloutError } from '../../model/failure.ts'
import type { ContentPart } from '../../model/message.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { isNeutral, REJECTED_FIELDS } from '../upstreams/wire/chat-fields.ts'

/**
 * Throws RolloutError `request.malformed` for a request that would make the engine load media from a URL or path, and for
 * a request with a field that is never passed to the engine.
 */
export function assertAdmissible(request: TurnRequest): void {
  for (const message of request.messages) for (const part of message.content) assertInline(part)
  if (request.wire.api !== 'openai-chat') return
  for (const [name, value] of Object.entries(request.wire.body)) {
    if (REJECTED_FIELDS.has(name) && !isNeutral(value)) throw rejectedField(name)
  }
}

/** The other APIs have no such fields: their dialects write only known fields into the engine's request. */
function rejectedField(name: string): RolloutError {
  const message =
    `The field '${name}' is not passed to the engine: a harness may not choose tokens, the prompt's ids or template, or ` +
    'weights. Remove the field; for JSON answers use response_format.'
  return new RolloutError('request.malformed', message, { param: name })
}

function assertInline(part: ContentPart): void {
  const url = locatorOf(part)
  if (url === undefined || url.startsWith('data:')) return
  const message =
    `Media must be inline data (a data: URL). The engine loads nothing from ${describe(url)}; ` +
    'let the harness read the file and send its content.'
  throw new RolloutError('request.malformed', message)
}

/** The URL of a message part that is not inline; undefined for inline parts. */
function locatorOf(part: ContentPart): string | undefined {
  switch (part.type) {
    case 'text':
      return undefined
    case 'image':
      return part.url
    case 'other':
      return locators(part.wire).find((url) => !url.startsWith('data:'))
  }
}

/** The members in which the four APIs have URLs of media or documents. */
function locators(wire: unknown): string[] {
  const named = ['image_url', 'audio_url', 'video_url', 'file_url'].map((name) => memberOf(wire, name))
  const nested = [...named, memberOf(wire, 'source')].map((value) => memberOf(value, 'url'))
  const values = [...named, ...nested, memberOf(memberOf(wire, 'fileData'), 'fileUri')]
  return values.filter((value) => typeof value === 'string')
}

function memberOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>)[name] : undefined
}

/** Names the kind of a URL without its contents, which may include credentials. */
function describe(url: string): string {
  const scheme = /^[a-z][a-z0-9+.-]*:/i.exec(url)?.[0]
  return scheme === undefined ? 'a path or name' : `a ${scheme} URL`
}
