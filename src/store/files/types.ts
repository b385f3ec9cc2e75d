export interface UploadInput {
  nodeId: string
  sessionId: string
  attempt: number
  /** Size of the file. `digest`: `sha256:` and hexadecimal digits, of the whole file. */
  bytes: number
  digest: string
}

export interface UploadState extends UploadInput {
  uploadId: string
  /** Number of bytes on disk; the next part starts here. */
  offset: number
  /** All bytes are stored, and their digest matches. */
  isComplete: boolean
}

export type KeepAs = { kind: 'result' } | { kind: 'artifact'; path: string }

export interface OpenFile {
  /** Size of the stream. */
  bytes: number
  /** Size of the whole file. */
  totalBytes: number
  stream: ReadableStream<Uint8Array>
}
