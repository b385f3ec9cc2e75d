/** The tiny engine with a script, in a separate process: `<sampled tokens of each answer> <context length>`. */
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { serveParent } from './child.ts'

const [sampledTokens = '1', maxModelLen = '32768'] = process.argv.slice(2)
const engine = await startEngine({ script: `default: { tokens: ${sampledTokens} }`, maxModelLen: Number(maxModelLen) })
serveParent(
  { url: engine.url },
  async () => undefined,
  () => engine.close(),
)
