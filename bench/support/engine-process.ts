/** The tiny engine in a separate process: `<script> <context length>`. */
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { serveParent } from './child.ts'

const [script, maxModelLen] = process.argv.slice(2)
const engine = await startEngine({ script, maxModelLen: Number(maxModelLen) })
serveParent({ url: engine.url }, { stop: () => engine.close() })
