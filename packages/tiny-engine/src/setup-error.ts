/** An invalid option, script or file at the start of the engine. */
export class EngineSetupError extends Error {
  override readonly name = 'EngineSetupError'
}
