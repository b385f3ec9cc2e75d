"""Traces for a trainer: token ids, masks, log probabilities, versions, rewards and advantages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterable, Literal, Mapping, Optional, Sequence

from ._arrays import IdType, to_numpy, to_torch
from .types import SessionResult, Trace

AdvantageMethod = Literal["grpo", "grpo-trl", "grpo-verl", "grpo-std", "rloo"]

# Version of a token that the policy did not sample, or whose version is unknown.
NO_VERSION = -1


@dataclass(frozen=True)
class Sample:
    """One token sequence to train. All lists have the length of `input_ids`: the prompt, then the response."""

    input_ids: list[int]
    prompt_length: int
    # 1 for sampled tokens to train, else 0.
    loss_mask: list[int]
    # 0.0 where the mask is 0.
    logprobs: list[float]
    # Policy version that sampled the token, NO_VERSION where there is none. The oldest possible one if uncertain.
    versions: list[int]
    # None: not graded, which is not the same as zero.
    reward: Optional[float]
    # The weights of the samples of a session add up to 1.
    weight: float
    session_id: str
    task_id: str
    trace: Trace

    def numpy(self, *, ids: IdType = "int64") -> dict[str, Any]:
        """Returns the lists as numpy arrays: ids and versions of type `ids`, a bool mask, float32 log probabilities."""
        return to_numpy(self, ids)

    def torch(self, *, ids: IdType = "int64", device: Any = None) -> dict[str, Any]:
        """Returns the lists as torch tensors, with the types of `numpy`."""
        return to_torch(self, ids, device)


def samples_of(result: SessionResult) -> list[Sample]:
    """Returns the samples of a result that can be trained: with a mask that is not 0, and all log probabilities."""
    samples = []
    for trace in result["trajectory"]["traces"]:
        logprobs = trace.get("response_logprobs")
        if logprobs is None or not any(trace["loss_mask"]):
            continue
        samples.append(_to_sample(trace, logprobs, result))
    return samples


def _to_sample(trace: Trace, logprobs: Sequence[Optional[float]], result: SessionResult) -> Sample:
    prompt = trace["prompt_ids"]
    mask: list[int] = [0] * len(prompt)
    mask += trace["loss_mask"]
    values = [0.0] * len(prompt) + [0.0 if value is None else value for value in logprobs]
    return Sample(
        input_ids=prompt + trace["response_ids"],
        prompt_length=len(prompt),
        loss_mask=mask,
        logprobs=values,
        versions=versions_of(trace),
        reward=trace.get("reward"),
        weight=float(trace["metadata"].get("weight", 1.0)),
        session_id=result["session_id"],
        task_id=result["task_id"],
        trace=trace,
    )


def versions_of(trace: Trace) -> list[int]:
    """Returns the policy version of each token of prompt and response."""
    length = len(trace["prompt_ids"]) + len(trace["response_ids"])
    versions = [NO_VERSION] * length
    spans = trace["metadata"].get("spans") or []
    for at, span in enumerate(spans):
        version = span.get("weight_version")
        if span.get("provenance") != "sampled" or not _is_count(version):
            continue
        end = spans[at + 1]["from"] if at + 1 < len(spans) else length
        versions[span["from"] : end] = [int(version)] * (end - span["from"])
    return versions


def _is_count(version: object) -> bool:
    return str(version).isdecimal() and str(version).isascii()


def reward_of(result: SessionResult) -> Optional[float]:
    """Returns the reward of a session; None if it was not graded, for example because the infrastructure failed."""
    evaluation = result["trajectory"]["metadata"].get("evaluation") or {}
    reward = evaluation.get("outcome_reward")
    return float(reward) if isinstance(reward, (int, float)) else None


def advantages_of(results: Iterable[SessionResult], method: AdvantageMethod = "grpo") -> dict[str, float]:
    """Returns the advantage of each graded session within its task, by session id.

    `grpo`: `r - mean`. `rloo`: `r` minus the mean of the other rewards. `grpo-trl`, `grpo-verl`: `(r - mean) / (std +
    epsilon)` with the deviation of the sample (N - 1) and the trainer's epsilon. `grpo-std`: the same with the deviation
    of the population (N). Sessions without a reward have no advantage and do not count in the mean.
    """
    groups: dict[str, dict[str, float]] = {}
    for result in results:
        reward = reward_of(result)
        if reward is not None:
            groups.setdefault(result["task_id"], {})[result["session_id"]] = reward
    advantages: dict[str, float] = {}
    for group in groups.values():
        for session_id, reward in group.items():
            advantage = _advantage(method, reward, list(group.values()))
            if advantage is not None:
                advantages[session_id] = advantage
    return advantages


# Keeps the advantages of a group with equal rewards at zero instead of 0/0.
_EPSILON = 1e-6
_TRL_EPSILON = 1e-4


def _advantage(method: AdvantageMethod, reward: float, group: Sequence[float]) -> Optional[float]:
    size = len(group)
    total = sum(group)
    mean = total / size
    squares = sum((each - mean) ** 2 for each in group)
    if method == "grpo":
        return reward - mean
    if method == "grpo-std":
        return (reward - mean) / (math.sqrt(squares / size) + _EPSILON)
    if method == "rloo":
        return None if size < 2 else reward - (total - reward) / (size - 1)
    if method == "grpo-trl":
        return 0.0 if size < 2 else (reward - mean) / (math.sqrt(squares / (size - 1)) + _TRL_EPSILON)
    # For a group of one verl takes a mean of 0 and a deviation of 1.
    return reward / (1 + _EPSILON) if size < 2 else (reward - mean) / (math.sqrt(squares / (size - 1)) + _EPSILON)


@dataclass(frozen=True)
class Batch:
    """Padded samples. Token fields are lists of rows with equal length; the others have one value for each row."""

    input_ids: list[list[int]]
    attention_mask: list[list[int]]
    loss_mask: list[list[int]]
    logprobs: list[list[float]]
    versions: list[list[int]]
    advantages: list[float]
    weights: list[float]

    def numpy(self, *, ids: IdType = "int64") -> dict[str, Any]:
        """Returns numpy arrays: ids and versions of type `ids`, bool masks, float32 values."""
        return to_numpy(self, ids)

    def torch(self, *, ids: IdType = "int64", device: Any = None) -> dict[str, Any]:
        """Returns torch tensors: ids and versions of type `ids`, bool masks, float32 values."""
        return to_torch(self, ids, device)


def to_batch(samples: Sequence[Sample], advantages: Mapping[str, float], *, pad_id: int = 0) -> Batch:
    """Pads samples on the right. Samples of sessions without an advantage are left out."""
    used = [sample for sample in samples if sample.session_id in advantages]
    width = max((len(sample.input_ids) for sample in used), default=0)
    gaps = [width - len(sample.input_ids) for sample in used]
    return Batch(
        input_ids=[sample.input_ids + [pad_id] * gap for sample, gap in zip(used, gaps)],
        attention_mask=[[1] * (width - gap) + [0] * gap for gap in gaps],
        loss_mask=[sample.loss_mask + [0] * gap for sample, gap in zip(used, gaps)],
        logprobs=[sample.logprobs + [0.0] * gap for sample, gap in zip(used, gaps)],
        versions=[sample.versions + [NO_VERSION] * gap for sample, gap in zip(used, gaps)],
        advantages=[advantages[sample.session_id] for sample in used],
        weights=[sample.weight for sample in used],
    )
