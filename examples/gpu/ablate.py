"""The same rollouts through each builder: updates (samples), tokens, and seconds for one gradient."""

import json
import subprocess
import time

from learn import Learner, Sample
from stack import REPOSITORY, Stack

BUILDERS = ["per_request", "prefix_merging", "prefix_tree"]


def compare_builders(stack: Stack, learner: Learner, advantages: dict[str, float]) -> list[dict]:
    """Exports the sessions of `advantages` once for each builder, and computes the gradient of one GRPO step on each export."""
    rows = []
    for builder in BUILDERS:
        began = time.monotonic()
        samples = [
            Sample(row["input_ids"], row["loss_mask"], row["logprobs"], advantages[row["session_id"]])
            for row in export(stack, builder)
            if row["session_id"] in advantages
        ]
        exported = time.monotonic()
        learner.measure(samples)
        rows.append(
            {
                "builder": builder,
                "samples": len(samples),
                "tokens": sum(len(sample.ids) for sample in samples),
                "trained_tokens": sum(sample.trained for sample in samples),
                "export_seconds": exported - began,
                "gradient_seconds": time.monotonic() - exported,
            }
        )
    return rows


def export(stack: Stack, builder: str) -> list[dict]:
    sessions = next((stack.folder / "up/nodes").glob("*/sessions"))
    command = [*stack.polar, "export", "all", "--from", str(sessions), "--run", "all", "--builder", builder]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [to_row(json.loads(line)) for line in done.stdout.splitlines()]


def to_row(trace: dict) -> dict:
    prompt = trace["prompt_ids"]
    zeros = [0] * len(prompt)
    return {
        "session_id": trace["metadata"]["session_id"],
        "input_ids": prompt + trace["response_ids"],
        "loss_mask": zeros + trace["loss_mask"],
        "logprobs": [0.0] * len(prompt) + [value or 0.0 for value in trace["response_logprobs"]],
    }
