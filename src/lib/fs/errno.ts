/** Readable text for error codes of the operating system. */
const WORDS: Readonly<Record<string, string>> = {
  EACCES: 'permission denied',
  EDQUOT: 'the disk quota is used up',
  EEXIST: 'it exists already',
  EFBIG: 'the file would exceed the size limit',
  EIO: 'the disk reported an input/output error',
  EISDIR: 'it is a directory',
  ELOOP: 'it is a symbolic link',
  EMFILE: 'this process has too many open files',
  ENFILE: 'the system has too many open files',
  ENOENT: 'no such file or directory',
  ENOSPC: 'the disk is full',
  ENOTDIR: 'a part of the path is a file, not a directory',
  EPERM: 'operation not permitted',
  EROFS: 'the file system is read-only',
}

/** Returns the code of a failed system call, such as `ENOSPC`; undefined for any other error. */
export function errnoOf(error: unknown): string | undefined {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  return typeof code === 'string' ? code : undefined
}

/** Handler of a rejected promise: resolves with undefined for errors with these codes, throws the others. */
export function ignoreErrno(...codes: string[]): (error: unknown) => undefined {
  return (error) => {
    if (!codes.includes(errnoOf(error) ?? '')) throw error
    return undefined
  }
}

/** Describes an error with its code: "the disk is full (ENOSPC)". */
export function describeError(error: unknown): string {
  const code = errnoOf(error)
  const words = code === undefined ? undefined : WORDS[code]
  if (words !== undefined) return `${words} (${code})`
  return error instanceof Error ? error.message : String(error)
}
