import { plugs } from '../../lib/plug.ts'
import { atif } from './atif.ts'
import { jsonl } from './jsonl.ts'
import { nemoGym } from './nemo-gym.ts'
import { nemoRl } from './nemo-rl.ts'
import { openaiSft } from './openai-sft.ts'
import { parquet } from './parquet.ts'
import { primeRl } from './prime-rl.ts'
import { sharegpt } from './sharegpt.ts'
import { skyrl } from './skyrl.ts'
import { slime } from './slime.ts'
import { trl } from './trl.ts'
import { verl } from './verl.ts'

export const exporters = plugs([
  jsonl,
  parquet,
  slime,
  verl,
  trl,
  nemoRl,
  nemoGym,
  primeRl,
  skyrl,
  atif,
  openaiSft,
  sharegpt,
])
