"""Joins the calls of each trajectory: a prompt holds all tokens before its completion."""

import json

found = []
for trajectory in trajectories:  # noqa: F821
    sample = {"ids": [], "trained": [], "logprobs": [], "version": trajectory.schema_version}
    for metrics in (step.metrics for step in trajectory.steps if step.metrics):
        assert metrics.prompt_token_ids[: len(sample["ids"])] == sample["ids"]
        start = len(metrics.prompt_token_ids)
        sample["ids"] = metrics.prompt_token_ids + metrics.completion_token_ids
        sample["trained"] += range(start, len(sample["ids"]))
        sample["logprobs"] += metrics.logprobs
    sample["reward"] = trajectory.extra["reward"]
    sample["group"] = trajectory.extra["group_id"]
    found.append(sample)
print(json.dumps(found))
