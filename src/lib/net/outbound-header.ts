/**
 * Header of every request whose URL a task chose: callbacks of the server, `http` and `judge` evaluators of a node. Our own
 * APIs refuse requests with this header, so that a task cannot use the server or a node to call them.
 */
export const OUTBOUND_HEADER = 'x-polar-outbound'

export function isOutbound(headers: Headers): boolean {
  return headers.has(OUTBOUND_HEADER)
}
