"""Feeds the recipe's samples through TRL's own queue dataset and packing."""

import json
import queue
from collections import defaultdict

from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout, RolloutQueueDataset
from trl.experimental.async_grpo.packing import TreeRow

rollouts = queue.Queue()
for sample in samples:  # noqa: F821
    rollouts.put(sample)
dataset = RolloutQueueDataset(rollouts, lambda: 0, lambda stale: None, 60, metrics=defaultdict(list))
read = iter(dataset)
found = []
for _ in range(rollouts.qsize()):
    example = next(read)
    row = TreeRow()
    row.add(example)
    batch = DataCollatorForRollout(pad_token_id=0).torch_call([[row]])
    trained = batch["token_index"][0]
    found.append(
        {
            "ids": batch["input_ids"][0].tolist(),
            # The position before a trained token scores it.
            "trained": (trained + 1).tolist(),
            "logprobs": batch["old_log_probs"][0].tolist(),
            "advantage": set(batch["advantages"][0].tolist()).pop(),
            "reward": example["metrics"]["reward"],
            "group": example["group_id"],
        }
    )
print(json.dumps(found))
