import { isLoopbackHost } from './loopback-host.ts'

/**
 * Returns the reason why a request may come from a web page of another site; undefined if it does not.
 * Detects cross-site requests by `Origin` and `Sec-Fetch-Site`. On a loopback listener it also detects DNS rebinding: a
 * page whose own name resolves to this machine sends that name as `Host`. Other listeners accept every `Host`, because the
 * names under which other machines know them are not known here.
 */
export function whyForeign(headers: Headers, host: string): string | undefined {
  const asked = headers.get('host') ?? ''
  const name = hostnameOf(asked)
  if (isLoopbackHost(host) && (name === undefined || (!isLoopbackHost(name) && name !== host.toLowerCase()))) {
    return `the request names the host ${JSON.stringify(asked)}`
  }
  const origin = headers.get('origin')
  if (origin !== null && originHostOf(origin) !== asked.toLowerCase()) {
    return `the request comes from a page of ${JSON.stringify(origin)}`
  }
  // Requests for images, scripts and forms may have no Origin header; browsers describe their source in this one.
  const site = headers.get('sec-fetch-site')
  const isOtherSite = site === 'cross-site' || site === 'same-site'
  return isOtherSite ? 'the request comes from a page of another site' : undefined
}

/** Removes the port; undefined for text that is not a host name. */
function hostnameOf(host: string): string | undefined {
  return /^(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?$/i.exec(host)?.[1]?.toLowerCase()
}

function originHostOf(origin: string): string | undefined {
  return URL.canParse(origin) ? new URL(origin).host : undefined
}
