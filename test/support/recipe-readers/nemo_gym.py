"""Joins the calls of each response: a prompt holds all tokens before its generation."""

import json

found = []
for row, response in zip(rows, responses):  # noqa: F821
    calls = [item for item in response.output if getattr(item, "generation_token_ids", None)]
    sample = {"ids": [], "trained": [], "logprobs": [], "reward": row["reward"]}
    for call in calls:
        assert call.prompt_token_ids[: len(sample["ids"])] == sample["ids"]
        start = len(call.prompt_token_ids)
        sample["ids"] = call.prompt_token_ids + call.generation_token_ids
        sample["trained"] += range(start, len(sample["ids"]))
        sample["logprobs"] += call.generation_log_probs
    found.append(sample)
print(json.dumps(found))
