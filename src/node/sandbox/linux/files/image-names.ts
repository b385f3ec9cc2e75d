/** Images that Apptainer fetches by name; any other image of it is a file or folder of this machine. */
const NAME = /^(?:(?:docker|oras):\/\/|docker-daemon:)(?=[^\s-])\S+$/

export function isImageName(image: string): boolean {
  return NAME.test(image)
}

/** The name of an image in the local Docker engine; undefined for an image that comes from elsewhere. */
export function localImageName(image: string): string | undefined {
  return isImageName(image) && image.startsWith('docker-daemon:') ? image.slice('docker-daemon:'.length) : undefined
}
