"""Imitation of a scripted expert, then GRPO, through an unmodified harness; held-out success before and after.

    python experiment.py --model FOLDER --harness pi --seed 1 --out results/pi-1.json

Every session runs in a sandbox of `polar up`; the trained tokens and their log probabilities are those that the gateway
captured. Each update goes through the server: gateways pause, the engine loads the weights, the server announces the version.
"""

import argparse
import json
import random
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ablate import compare_builders
from learn import Learner, Sample
from model import Shape, load_weights, save_weights
from stack import Stack
from tasks import Task, make_task

from polar_rl import advantages_of, reward_of, samples_of

AGENTS = {
    "pi": {
        "harness": "pi",
        "settings": {
            "tools": ["read", "bash", "edit", "write"],
            "config": {"compaction": {"enabled": False}, "retry": {"enabled": False}},
        },
    },
    "mini_swe_agent": {"harness": "mini_swe_agent", "settings": {"step_limit": 10}},
    "codex": {"harness": "codex", "settings": {}},
}


@dataclass
class Config:
    harness: str
    seed: int
    # Harnesses that the trained policy is evaluated in as well.
    transfer: list[str]
    expert_tasks: int = 160
    imitation_epochs: int = 2
    imitation_batch: int = 16
    imitation_rate: float = 3e-5
    steps: int = 16
    groups: int = 12
    samples: int = 8
    rate: float = 1e-5
    held_out: int = 100
    max_tokens: int = 160
    timeout_seconds: int = 60


class Experiment:
    def __init__(self, config: Config, stack: Stack, model: Path, device: str):
        self.config, self.stack, self.client, self.device = config, stack, stack.client, device
        self.shape = Shape.load(model)
        self.weights = load_weights(model, self.shape, device)
        self.learner = Learner(self.weights, self.shape, device, config.imitation_rate)
        self.version = 0
        self.count = 0
        self.log: list[dict] = []

    # ---- sessions

    def sample(self, tasks: list[Task], samples: int, harness: str) -> list[dict]:
        """Runs `samples` sessions of each task and returns the results that have a reward."""
        submits = [self._submit(task, samples, harness) for task in tasks]
        ids = [task_id for at in range(0, len(submits), 500) for task_id in self.client.submit_many(submits[at : at + 500])]
        return [result for result in self.client.results(*ids) if reward_of(result) is not None]

    def _submit(self, task: Task, samples: int, harness: str) -> dict:
        self.count += 1
        return {
            "task_id": f"{task.kind}-{self.config.seed}-{self.count}",
            "instruction": task.instruction,
            "num_samples": samples,
            "timeout_seconds": self.config.timeout_seconds,
            "policy_version": self.version,
            "runtime": {"prepare": [{"type": "exec", "command": task.prepare()}]},
            "agent": AGENTS[harness],
            "sampling": {"temperature": 1.0, "max_tokens": self.config.max_tokens},
            "builder": {"strategy": "prefix_merging"},
            "evaluator": {"strategy": "command", "config": {"command": task.check}},
        }

    # ---- phases

    def evaluate(self, phase: str, harness: str) -> None:
        began = time.monotonic()
        tasks = [make_task(0, i, is_held_out=True) for i in range(self.config.held_out)]
        results = self.sample(tasks, 1, harness)
        kinds: dict[str, list[float]] = {}
        for result in results:
            kinds.setdefault(result["task_id"].split("-")[0], []).append(reward_of(result))
        rewards = [reward for group in kinds.values() for reward in group]
        self.note(
            phase=phase,
            harness=harness,
            sessions=len(rewards),
            successes=sum(rewards),
            success=sum(rewards) / max(1, len(rewards)),
            kinds={kind: sum(group) / len(group) for kind, group in kinds.items()},
            seconds=time.monotonic() - began,
        )

    def imitate(self) -> None:
        config, began = self.config, time.monotonic()
        tasks = [make_task(config.seed * 100 + 1, i) for i in range(config.expert_tasks)]
        plans = {task.instruction: [(step.verb, step.arguments) for step in task.plan] for task in tasks}
        self.stack.call_engine("/expert", {"plans": plans})
        results = self.sample(tasks, 1, config.harness)
        self.stack.call_engine("/expert", {"plans": None})
        accepted = [sample for result in results if reward_of(result) == 1 for sample in samples_of(result)]
        self.note(
            phase="expert",
            harness=config.harness,
            sessions=len(results),
            accepted=sum(reward_of(result) == 1 for result in results),
            samples=len(accepted),
            tokens=sum(sum(sample.loss_mask) for sample in accepted),
            seconds=time.monotonic() - began,
        )
        rng = random.Random(config.seed)
        rows = [Sample(s.input_ids, s.loss_mask, s.logprobs) for s in accepted]
        for epoch in range(config.imitation_epochs):
            rng.shuffle(rows)
            for at in range(0, len(rows), config.imitation_batch):
                began = time.monotonic()
                numbers = self.learner.imitate(rows[at : at + config.imitation_batch])
                last = {"loss": numbers["loss"], "seconds": time.monotonic() - began}
            self.note(phase="imitation", epoch=epoch, **last)
        self.publish()

    def reinforce(self, until: float) -> None:
        """GRPO steps, none of which begins after the time `until`."""
        config = self.config
        for group in self.learner.optimizer.param_groups:
            group["lr"] = config.rate
        for step in range(config.steps):
            began = time.monotonic()
            if began > until:
                break
            tasks = [make_task(config.seed * 100 + 2, step * config.groups + i) for i in range(config.groups)]
            results = self.sample(tasks, config.samples, config.harness)
            sampled = time.monotonic()
            rewards = [reward_of(result) for result in results]
            advantages = advantages_of(results, "grpo-std")
            samples = [sample for result in results for sample in samples_of(result)]
            versions = {version for sample in samples for version, m in zip(sample.versions, sample.loss_mask) if m}
            rows = [
                Sample(s.input_ids, s.loss_mask, s.logprobs, advantages[s.session_id])
                for s in samples
                if abs(advantages.get(s.session_id, 0.0)) > 1e-9
            ]
            if step == config.steps // 2:
                self.note(phase="builders", rows=compare_builders(self.stack, self.learner, advantages))
            began_update = time.monotonic()
            numbers = self.learner.grpo(rows) if rows else {}
            self.publish()
            self.note(
                phase="grpo",
                step=step,
                reward=sum(rewards) / max(1, len(rewards)),
                sessions=len(rewards),
                samples=len(samples),
                trained=len(rows),
                versions=sorted(versions),
                calls=sum(len(result["trajectory"].get("calls", [])) for result in results),
                sampling_seconds=sampled - began,
                update_seconds=time.monotonic() - began_update,
                **numbers,
            )

    def publish(self) -> None:
        """Replaces the engine's weights through the server: pause, update, version, resume."""
        file = self.stack.folder / "weights.safetensors"
        save_weights(self.learner.weights, file)
        with self.client.updating_weights(self.version + 1):
            self.stack.call_engine("/update_weights", {"path": str(file), "version": self.version + 1})
        self.version += 1

    def note(self, **row: object) -> None:
        self.log.append({"at": round(time.time(), 1), **row})
        print(json.dumps(self.log[-1]), flush=True)


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--model", type=Path, required=True)
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--folder", type=Path, required=True, help="data of the engine and of polar up")
    args.add_argument("--harness", choices=AGENTS, default="pi")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--transfer", nargs="*", choices=AGENTS, default=[])
    args.add_argument("--slots", type=int, default=48)
    args.add_argument("--length", type=int, default=3072)
    args.add_argument("--parallel", type=int, default=16, help="sessions at a time")
    args.add_argument("--runtime", default="bubblewrap", help="sandboxes of the sessions, as for polar up")
    args.add_argument("--polar", default="npm run --silent polar --")
    args.add_argument("--seconds", type=float, default=1e9, help="no new GRPO step after this time")
    args.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other values of Config")
    given = args.parse_args()
    began = time.monotonic()
    torch.manual_seed(given.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    more = {name: json.loads(value) for name, value in (each.split("=", 1) for each in given.set)}
    config = Config(given.harness, given.seed, given.transfer, **more)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    polar = shlex.split(given.polar)
    with Stack(given.model, given.folder, given.slots, given.length, given.parallel, polar, given.runtime) as stack:
        experiment = Experiment(config, stack, given.model, device)
        try:
            harnesses = [config.harness, *config.transfer]
            for harness in harnesses:
                experiment.evaluate("untrained", harness)
            experiment.imitate()
            for harness in harnesses:
                experiment.evaluate("imitation", harness)
            experiment.reinforce(began + given.seconds)
            for harness in harnesses:
                experiment.evaluate("grpo-end", harness)
        finally:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            report = {"config": asdict(config), "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
            given.out.write_text(json.dumps({**report, "log": experiment.log}, indent=1))


if __name__ == "__main__":
    main()
