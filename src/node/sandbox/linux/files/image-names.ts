/** Names of images that Apptainer fetches; any other image is a file or folder of this machine. */
const NAME = /^(?:(?:docker|oras):\/\/|docker-daemon:)(?=[^\s-])\S+$/

export function isImageName(image: string): boolean {
  return NAME.test(image)
}

/** Name of an image in the local Docker engine; undefined for other images. */
export function localImageName(image: string): string | undefined {
  return isImageName(image) && image.startsWith('docker-daemon:') ? image.slice('docker-daemon:'.length) : undefined
}
