/** An option, a script or a file that the engine cannot start with. */
export class EngineSetupError extends Error {
  override readonly name = 'EngineSetupError'
}
