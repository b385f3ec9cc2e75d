import { buffer } from 'node:stream/consumers'
import { getCACertificates } from 'node:tls'
import { undici } from './undici.ts'

export interface DownloadOptions {
  /** HTTPS_PROXY, HTTP_PROXY and NO_PROXY. */
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
  maxBytes: number
}

/**
 * Loads a file over HTTP into memory. The certificate authorities of the operating system are trusted besides those of Node:
 * the authority of a company's proxy is usually installed there. User name and password in the URL become a Basic header.
 * Throws an Error for every answer but 200, and for a body that is cut off.
 */
export async function download(url: string, { env, signal, maxBytes }: DownloadOptions): Promise<Buffer> {
  const { EnvHttpProxyAgent, interceptors, request } = undici()
  const { address, headers } = splitCredentials(url)
  const tls = { ca: [...new Set([...getCACertificates('default'), ...getCACertificates('system')])] }
  const agent = new EnvHttpProxyAgent({
    httpsProxy: env['HTTPS_PROXY'] ?? env['https_proxy'] ?? '',
    httpProxy: env['HTTP_PROXY'] ?? env['http_proxy'] ?? '',
    noProxy: env['NO_PROXY'] ?? env['no_proxy'] ?? '',
    maxResponseSize: maxBytes,
    connect: tls,
    requestTls: tls,
    proxyTls: tls,
  })
  try {
    const dispatcher = agent.compose(interceptors.redirect({ maxRedirections: 5 }))
    const { statusCode, body } = await request(address, { dispatcher, signal, headers })
    const data = await buffer(body)
    if (statusCode !== 200) throw new Error(`it answered ${statusCode}`)
    return data
  } finally {
    await agent.destroy()
  }
}

/** The URL without user name and password, for messages. */
export function withoutCredentials(url: string): string {
  return splitCredentials(url).address
}

function splitCredentials(url: string): { address: string; headers: Record<string, string> } {
  if (!URL.canParse(url)) return { address: url, headers: {} }
  const parsed = new URL(url)
  const { username, password } = parsed
  if (username === '' && password === '') return { address: url, headers: {} }
  parsed.username = ''
  parsed.password = ''
  const pair = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  return { address: parsed.href, headers: { authorization: `Basic ${Buffer.from(pair).toString('base64')}` } }
}
