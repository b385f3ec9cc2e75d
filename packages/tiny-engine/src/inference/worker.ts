import { parentPort, workerData } from 'node:worker_threads'
import { loadBackend } from './backend.ts'
import type { LanguageModel } from './backend.ts'
import { NativeGate } from './native-gate.ts'
import { PrefixCache } from './prefix-cache.ts'
import type { FromWorker, ToWorker, WorkerData } from './protocol.ts'
import { Scheduler } from './scheduler.ts'

/** Thread of a model. Inference blocks, and logits are too large to transfer, so sampling runs here too. */
async function serve(port: NonNullable<typeof parentPort>, settings: WorkerData): Promise<void> {
  const post = (message: FromWorker) => port.postMessage(message)
  const gate = new NativeGate(settings.gate)
  const { kind, model: bareModel } = await gate.pass(() => loadBackend(settings.backend, settings.modelFolder))
  const model: LanguageModel = {
    shape: bareModel.shape,
    forward: (ids, past) => gate.pass(() => bareModel.forward(ids, past)),
    release: () => gate.pass(() => bareModel.release()),
  }
  const cache = new PrefixCache({ capacityBytes: settings.prefixCacheBytes, keyValueHeads: model.shape.keyValueHeads })
  const scheduler = new Scheduler({ model, cache, maxActive: settings.maxActive, emit: post })
  scheduler.setOutputWeights(settings.outputWeights)

  const close = async () => {
    await scheduler.close()
    await model.release()
    port.close()
  }
  port.on('message', (message: ToWorker) => {
    switch (message.type) {
      case 'sample':
        scheduler.sample(message.task, message.request)
        break
      case 'grant':
        scheduler.grant(message.task, message.tokens)
        break
      case 'score':
        scheduler.score(message.task, message.request)
        break
      case 'cancel':
        scheduler.cancel(message.task)
        break
      case 'set-output-weights':
        scheduler.setOutputWeights(message.weights)
        post({ type: 'output-weights-set', task: message.task })
        break
      case 'close':
        void close()
        break
    }
  })
  post({ type: 'ready', backend: kind })
}

if (parentPort !== null) {
  const port = parentPort
  serve(port, workerData as WorkerData).catch((error: unknown) => {
    const message: FromWorker = { type: 'not-ready', message: error instanceof Error ? error.message : String(error) }
    port.postMessage(message)
    port.close()
  })
}
