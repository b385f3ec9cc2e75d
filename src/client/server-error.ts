import * as z from 'zod'
import { parseJson } from '../lib/json/json-text.ts'
import { type FailureCode, FailureCode as KnownCode, RolloutError } from '../model/failure.ts'

/** As loose as can be: an older or newer server, or a proxy before it, may have written it. */
const AnyErrorBody = z.looseObject({
  error: z.looseObject({ code: z.string(), message: z.string(), param: z.string().optional() }).optional(),
  detail: z.unknown(),
})

/** What stands for a status that came without a code. */
const CODES: Readonly<Record<number, FailureCode>> = {
  400: 'request.malformed',
  401: 'request.unauthorized',
  403: 'request.forbidden',
  404: 'request.not-found',
  405: 'request.wrong-method',
  409: 'request.conflict',
  413: 'request.too-large',
  415: 'request.unsupported-encoding',
  422: 'request.malformed',
  429: 'request.over-quota',
}

/** An error page of something on the way may be of any length. */
const MOST_TEXT = 500

export async function toServerError(request: Request, response: Response): Promise<RolloutError> {
  const { status } = response
  const text = await response.text().catch(() => '')
  const parsed = AnyErrorBody.safeParse(parseJson(text))
  const error = parsed.success ? parsed.data.error : undefined
  const known = KnownCode.safeParse(error?.code)
  const detail =
    parsed.success && typeof parsed.data.detail === 'string' ? parsed.data.detail : text.slice(0, MOST_TEXT)
  const message = error?.message ?? `${request.method} ${request.url} was answered with ${status}: ${detail}`
  const code = known.success ? known.data : (CODES[status] ?? (status >= 500 ? 'server.failed' : 'request.malformed'))
  const retryAfterSeconds = toSeconds(response.headers.get('retry-after'))
  return new RolloutError(code, message, {
    status,
    ...(error?.param !== undefined && { param: error.param }),
    ...(retryAfterSeconds !== undefined && { retryAfterSeconds }),
  })
}

export function unreachable(request: Request, cause: unknown): RolloutError {
  const why = cause instanceof Error ? reasonOf(cause) : String(cause)
  const hint = mistrustOf(cause) ?? guessOf(request, why)
  const message = `${request.method} ${request.url} got no whole answer (${why}); ${hint}`
  return new RolloutError('server.unreachable', message, { cause })
}

/** What to do where the server is there, and its certificate is not one to believe; undefined: it is not that. */
export function mistrustOf(cause: unknown): string | undefined {
  const why = cause instanceof Error ? reasonOf(cause) : ''
  switch (why) {
    case 'ERR_TLS_CERT_ALTNAME_INVALID':
      return 'its certificate is made out to another name: use that name, or have this one put into the certificate.'
    case 'CERT_HAS_EXPIRED':
    case 'CERT_NOT_YET_VALID':
      return 'its certificate is not valid now: have it renewed, or look at the clock of this machine.'
    case 'UNABLE_TO_VERIFY_LEAF_SIGNATURE':
    case 'UNABLE_TO_GET_ISSUER_CERT':
    case 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY':
    case 'SELF_SIGNED_CERT_IN_CHAIN':
    case 'DEPTH_ZERO_SELF_SIGNED_CERT':
    case 'CERT_SIGNATURE_FAILURE':
    case 'CERT_UNTRUSTED':
      return 'nobody who is trusted here has signed its certificate: start this with NODE_EXTRA_CA_CERTS=ca.pem, the file of the authority that did.'
    default:
      return undefined
  }
}

function guessOf({ url }: Request, why: string): string {
  if (/^(?:EPROTO|ERR_SSL_)/.test(why)) return 'does it speak TLS there? Without it, its address begins with http://.'
  const isCut = /^(?:UND_ERR_SOCKET|ECONNRESET|HPE_)/.test(why) && url.startsWith('http:')
  if (isCut) return 'is the server up, and is this its address? Where it has TLS, that begins with https://.'
  return 'is the server up, and is this its address?'
}

/** `fetch` says no more than that it failed; what happened is in its cause. */
function reasonOf(error: Error): string {
  const { cause } = error
  if (!(cause instanceof Error)) return error.message
  const { code } = cause as { code?: unknown }
  return typeof code === 'string' ? code : cause.message
}

/** Dates are not understood: the clocks of two machines may differ by more than what is asked for. */
function toSeconds(header: string | null): number | undefined {
  return header !== null && /^\d{1,6}$/.test(header) ? Number(header) : undefined
}
