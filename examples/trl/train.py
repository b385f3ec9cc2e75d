"""GRPO with TRL through sessions of Polar: `python examples/trl/train.py --model FOLDER --engine URL`.

The engine samples from the weights that TRL trains: the trained part is a bias of the output layer, which `polar engine`
accepts, and which is loaded into it after each step.
"""

from __future__ import annotations

import argparse
import base64
import json
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from polar_rl import Client
from polar_rl.types import SubmitRequest
from polar_trl import PolarRollout, WeightUpdates, polar_reward
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

AGENT = str(Path(__file__).parent.parent.joinpath("tasks/ask.sh").resolve())
PROMPTS = ["Who are you?", "What can you do?"]


def make_task(prompt: str, samples: int) -> SubmitRequest:
    return {
        "task_id": f"trl-{uuid.uuid4()}",
        "instruction": prompt,
        "num_samples": samples,
        "runtime": {"prepare": [{"type": "upload_file", "source": AGENT, "target": "ask.sh"}]},
        "agent": {"harness": "shell", "custom_shell": {"command": "bash ask.sh"}},
        "builder": {"strategy": "prefix_merging"},
        # A reward of 1 for an answer with an exclamation mark.
        "evaluator": {"strategy": "command", "config": {"command": "grep -q '[!！]' answer.txt"}},
    }


def load_model(folder: str) -> Any:
    """Loads the model and adds a bias to its output layer, the only part that is trained."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.requires_grad_(False)
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
    return model


def load_into_engine(url: str, model: Any, version: int) -> None:
    bias = model.lm_head.bias.detach().numpy().astype("<f4").tobytes()
    update = {"update_info": {"output_bias": base64.b64encode(bias).decode()}, "weight_version": str(version)}
    request = urllib.request.Request(
        f"{url}/update_weights", json.dumps(update).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()


@torch.no_grad()
def logprob_difference(model: Any, rows: dict[str, list[Any]]) -> float:
    """Returns the mean difference of captured log probabilities and those that the trainer's model computes."""
    differences: list[float] = []
    for prompt, completion, captured, mask in zip(*(rows[key] for key in ("prompt_ids", "completion_ids", "logprobs", "env_mask"))):
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        computed = logits.log_softmax(-1).gather(1, torch.tensor([completion]).T)[:, 0]
        differences += [abs(float(one) - other) for one, other, trained in zip(computed, captured, mask) if trained]
    return sum(differences) / max(1, len(differences))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the model that the engine serves, in the format of transformers")
    parser.add_argument("--engine", required=True, help="URL of `polar engine`")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8, help="sessions for each prompt")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--report", help="file for the steps, as lines of JSON")
    args = parser.parse_args()

    client = Client()  # POLAR_SERVER_URL and POLAR_TOKEN, or the `polar up` of this folder
    model, tokenizer = load_model(args.model), AutoTokenizer.from_pretrained(args.model)
    load_into_engine(args.engine, model, client.policy_version())
    polar, steps = PolarRollout(client, make_task), []

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        rows = polar(prompts, trainer)
        rewards = [reward for reward in rows["session_reward"] if reward is not None]
        versions = {version for row in rows["versions"] for version in row if version >= 0}
        steps.append(
            {
                "step": trainer.state.global_step,
                "sessions": len(prompts),
                "reward": sum(rewards) / max(1, len(rewards)),
                "trained_tokens": sum(map(sum, rows["env_mask"])),
                "versions": sorted(versions),
                "logprob_difference": logprob_difference(trainer.model, rows),
            }
        )
        print(json.dumps(steps[-1]), flush=True)
        return rows

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * args.steps}),
        rollout_func=rollout,
        reward_funcs=polar_reward,
        callbacks=[WeightUpdates(client, lambda model, version: load_into_engine(args.engine, model, version))],
        args=GRPOConfig(
            output_dir=".polar/trl",
            max_steps=args.steps,
            num_generations=args.samples,
            per_device_train_batch_size=len(PROMPTS) * args.samples,
            learning_rate=args.learning_rate,
            lr_scheduler_type="constant",
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
        ),
    )
    trainer.train()
    if args.report:
        Path(args.report).write_text("".join(json.dumps(step) + "\n" for step in steps))


main()
