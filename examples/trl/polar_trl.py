"""Sessions of Polar as the rollouts of TRL's GRPOTrainer."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import Any, Callable, Optional

from accelerate import PartialState
from polar_rl import Client, reward_of, samples_of
from polar_rl.types import SessionResult, SubmitRequest
from transformers import TrainerCallback
from trl import GRPOTrainer

# Makes a task of a prompt and the number of samples.
MakeTask = Callable[[Any, int], SubmitRequest]


class PolarRollout:
    """`rollout_func` of GRPOTrainer: runs one session for each prompt, and returns its tokens and its reward.

    Equal prompts in a row are one task: TRL repeats a prompt for each sample of its group.
    """

    def __init__(self, client: Client, make_task: MakeTask) -> None:
        self._client = client
        self._make_task = make_task

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        groups = [(prompt, len(list(equal))) for prompt, equal in groupby(prompts)]
        task_ids = self._client.submit_many([self._make_task(prompt, count) for prompt, count in groups])
        # A session that is retried by request has several results; the last one counts.
        ended: dict[str, dict[str, SessionResult]] = defaultdict(dict)
        for result in self._client.results(*task_ids):
            ended[result["task_id"]][result["session_id"]] = result
        pad = trainer.processing_class.pad_token_id
        rows = []
        for task_id, (_, count) in zip(task_ids, groups):
            found = [_to_row(result) or _untrained_row(pad) for result in ended[task_id].values()]
            rows += found + [_untrained_row(pad)] * (count - len(found))
        return {key: [row[key] for row in rows] for key in rows[0]}


def _to_row(result: SessionResult) -> Optional[dict[str, Any]]:
    """Returns what TRL reads for one prompt, or None for a session without tokens to train.

    TRL trains one sequence for each prompt. A session with several samples, for example because its harness compacted
    the context, is represented by the sample with the most trained tokens.
    """
    samples = samples_of(result)
    if not samples:
        return None
    sample = max(samples, key=lambda each: sum(each.loss_mask))
    start = sample.prompt_length
    return {
        "prompt_ids": sample.input_ids[:start],
        "completion_ids": sample.input_ids[start:],
        "logprobs": sample.logprobs[start:],
        # 1 for sampled tokens; 0 for the output of tools.
        "env_mask": sample.loss_mask[start:],
        "session_reward": reward_of(result),
        "samples_left_out": len(samples) - 1,
        "versions": sample.versions[start:],
    }


def _untrained_row(pad: int) -> dict[str, Any]:
    """TRL needs a completion for each prompt: one token that is not trained, without a reward."""
    tokens = {"prompt_ids": [pad], "completion_ids": [pad], "logprobs": [0.0], "env_mask": [0], "versions": [-1]}
    return {**tokens, "session_reward": None, "samples_left_out": 0}


def polar_reward(session_reward: list[Optional[float]], **columns: Any) -> list[Optional[float]]:
    """Reward function of GRPOTrainer: the reward that the evaluator of the task gave to the session.

    It is None for a session that infrastructure spoilt; TRL leaves such a session out of the mean of its group.
    """
    columns["log_metric"]("polar/ungraded_sessions", session_reward.count(None))
    columns["log_metric"]("polar/samples_left_out", sum(columns["samples_left_out"]))
    return session_reward


class WeightUpdates(TrainerCallback):
    """Loads the weights into the engine after each optimizer step, and sets the next policy version.

    All gateways hold their calls while `load_weights(model, version)` runs, so no answer mixes two versions.
    """

    def __init__(self, client: Client, load_weights: Callable[[Any, int], None]) -> None:
        self._client = client
        self._load_weights = load_weights

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.is_world_process_zero:
            version = self._client.policy_version() + 1
            with self._client.updating_weights(version):
                self._load_weights(model, version)
        # No other process may sample before the engine has the weights.
        PartialState().wait_for_everyone()
