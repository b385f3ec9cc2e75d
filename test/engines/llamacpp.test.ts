import { describeEngine } from './engine-lane.ts'
import { pinnedVersion } from './install-engine.ts'
import { scoreByLlamacpp } from './score-sequence.ts'

describeEngine('llama.cpp', {
  start: { environment: 'llamacpp', model: 'minimind' },
  version: `b${pinnedVersion('llamacpp', 'xllamacpp').split('.').at(-1)}`,
  forces: false,
  isExact: false,
  continues: false,
  score: (engine) => scoreByLlamacpp(engine, 6400, 4),
  // llama.cpp computes attention with 16-bit keys and values.
  tolerance: 0.1,
  turns: 6,
})
