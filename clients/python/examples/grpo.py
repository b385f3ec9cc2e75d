"""GRPO on the server of `polar up`: sample groups, compute advantages, update, announce the new version."""

import uuid
from pathlib import Path

from polar_rl import Batch, Client, advantages_of, reward_of, samples_of, to_batch
from polar_rl.types import SubmitRequest

STEPS, SAMPLES, PROMPTS = 2, 4, ["Who are you?"]
AGENT = str(Path("examples/tasks/ask.sh").resolve())


def make_task(prompt: str, version: int) -> SubmitRequest:
    return {
        "task_id": f"grpo-{uuid.uuid4()}",
        "instruction": prompt,
        "num_samples": SAMPLES,
        "policy_version": version,
        "runtime": {"prepare": [{"type": "upload_file", "source": AGENT, "target": "ask.sh"}]},
        "agent": {"harness": "shell", "custom_shell": {"command": "bash ask.sh"}},
        "builder": {"strategy": "prefix_merging"},
        "evaluator": {"strategy": "command", "config": {"command": "grep -q help answer.txt"}},
    }


def update_policy_stub(batch: Batch) -> None:
    """Replace with your optimizer step: batch.torch() has ids, masks, log probabilities, advantages and weights."""
    print(f"  no update: {len(batch.input_ids)} samples, {sum(map(sum, batch.loss_mask))} trained tokens")


client = Client()  # POLAR_SERVER_URL and POLAR_TOKEN, or the `polar up` of this folder
for step in range(STEPS):
    version = client.policy_version()
    results = list(client.results(*client.submit_many([make_task(prompt, version) for prompt in PROMPTS])))
    rewards = [reward for reward in map(reward_of, results) if reward is not None]
    print(f"step {step}: version {version}, {len(results)} sessions, mean reward {sum(rewards) / max(1, len(rewards)):.2f}")
    update_policy_stub(to_batch([sample for result in results for sample in samples_of(result)], advantages_of(results)))
    client.set_policy_version(version + 1)
