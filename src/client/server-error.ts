import * as z from 'zod'
import { parseJson } from '../lib/json/json-text.ts'
import { type FailureCode, FailureCode as KnownCode, RolloutError } from '../model/failure.ts'

/** Accepts almost any body: an older or newer server, or a proxy, may have written it. */
const AnyErrorBody = z.looseObject({
  error: z.looseObject({ code: z.string(), message: z.string(), param: z.string().optional() }).optional(),
  detail: z.unknown(),
})

/** Failure code of a status without a code in the body. */
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

/** An error page of a proxy may have any length. */
const MAX_TEXT = 500

export async function toServerError(request: Request, response: Response): Promise<RolloutError> {
  const { status } = response
  const text = await response.text().catch(() => '')
  const parsed = AnyErrorBody.safeParse(parseJson(text))
  const error = parsed.success ? parsed.data.error : undefined
  const known = KnownCode.safeParse(error?.code)
  const detail = parsed.success && typeof parsed.data.detail === 'string' ? parsed.data.detail : text.slice(0, MAX_TEXT)
  const message = error?.message ?? `${request.method} ${request.url} failed with ${status}: ${detail}`
  const code = known.success ? known.data : (CODES[status] ?? (status >= 500 ? 'server.failed' : 'request.malformed'))
  const retryAfterSeconds = toSeconds(response.headers.get('retry-after'))
  return new RolloutError(code, message, { status, param: error?.param, retryAfterSeconds })
}

export function unreachable(request: Request, cause: unknown): RolloutError {
  const why = cause instanceof Error ? reasonOf(cause) : String(cause)
  const hint = certificateHint(cause) ?? connectionHint(request, why)
  const message = `${request.method} ${request.url} got no complete response (${why}); ${hint}`
  return new RolloutError('server.unreachable', message, { cause })
}

/** What to do about an untrusted certificate; undefined if the error has another cause. */
export function certificateHint(cause: unknown): string | undefined {
  const why = cause instanceof Error ? reasonOf(cause) : ''
  switch (why) {
    case 'ERR_TLS_CERT_ALTNAME_INVALID':
      return 'the certificate is for another host name: use that name, or add this one to the certificate.'
    case 'CERT_HAS_EXPIRED':
    case 'CERT_NOT_YET_VALID':
      return 'the certificate is not valid now: renew it, or check the clock of this machine.'
    case 'UNABLE_TO_VERIFY_LEAF_SIGNATURE':
    case 'UNABLE_TO_GET_ISSUER_CERT':
    case 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY':
    case 'SELF_SIGNED_CERT_IN_CHAIN':
    case 'DEPTH_ZERO_SELF_SIGNED_CERT':
    case 'CERT_SIGNATURE_FAILURE':
    case 'CERT_UNTRUSTED':
      return 'the certificate is not signed by a trusted authority: start this program with NODE_EXTRA_CA_CERTS=ca.pem, the certificate of the authority.'
    default:
      return undefined
  }
}

function connectionHint({ url }: Request, why: string): string {
  if (/^(?:EPROTO|ERR_SSL_)/.test(why))
    return 'check whether the server uses TLS: without TLS its URL starts with http://.'
  const isCut = /^(?:UND_ERR_SOCKET|ECONNRESET|HPE_)/.test(why) && url.startsWith('http:')
  if (isCut) return 'check that the server is running and that the URL is correct; with TLS it starts with https://.'
  return 'check that the server is running and that the URL is correct.'
}

/** The error of `fetch` has no details; its cause has. */
function reasonOf(error: Error): string {
  const { cause } = error
  if (!(cause instanceof Error)) return error.message
  const { code } = cause as { code?: unknown }
  return typeof code === 'string' ? code : cause.message
}

/** Ignores dates: the clocks of two machines may differ by more than the delay. */
function toSeconds(header: string | null): number | undefined {
  return header !== null && /^\d{1,6}$/.test(header) ? Number(header) : undefined
}
