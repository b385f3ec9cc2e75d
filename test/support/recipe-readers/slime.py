"""Loads the recipe's file with slime's own loader."""

import json
import sys

sys.path.insert(0, sys.argv[1])
from slime.observability.rollout_data_utils import load_debug_rollout_data  # noqa: E402

found = []
for sample in load_debug_rollout_data("rollout_{rollout_id}.pt", rollout_id=0):
    sample._validate_response_metadata_lengths()
    start = len(sample.tokens) - sample.response_length
    trained = [i for i, value in enumerate(sample.loss_mask) if value]
    found.append(
        {
            "ids": sample.tokens,
            "trained": [start + i for i in trained],
            "logprobs": [sample.rollout_log_probs[i] for i in trained],
            "reward": sample.reward,
            "group": sample.group_index,
        }
    )
print(json.dumps(found))
