"""Prints the batch that SkyRL joined and validated."""

import json

found = [
    {
        "ids": prompt + response,
        "trained": [len(prompt) + i for i, value in enumerate(mask) if value],
        "logprobs": [value for value, trained in zip(logprobs, mask) if trained],
        "reward": reward,
        "group": trajectory.instance_id,
        "last": last,
    }
    for prompt, response, mask, logprobs, reward, trajectory, last in zip(
        *(
            batch[key]  # noqa: F821
            for key in (
                "prompt_token_ids",
                "response_ids",
                "loss_masks",
                "rollout_logprobs",
                "rewards",
                "trajectory_ids",
                "is_last_step",
            )
        )
    )
]
assert batch["rollout_metrics"]["generate/max_num_tokens"] == max(map(len, batch["response_ids"]))  # noqa: F821
print(json.dumps(found))
