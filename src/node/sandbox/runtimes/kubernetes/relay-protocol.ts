/** Bytes before the content of a frame: connection id (4), kind (1), length of the content (4). */
const headerBytes = 9
/** Bytes of one connection that may be in transit, so that a connection that is not read blocks no other. */
const windowBytes = 256 * 1024
const maxConnections = 512
const kinds = { open: 1, data: 2, end: 3, close: 4, credit: 5, ready: 6, failed: 7 } as const

/** Frames between the relay in a pod and the node. Also passed to relay.cjs as JSON. */
export const relayProtocol = { headerBytes, windowBytes, maxConnections, kinds }
