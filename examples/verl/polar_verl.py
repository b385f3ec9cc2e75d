"""Sessions of Polar as an agent loop of verl."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any, Optional

from omegaconf import OmegaConf
from polar_rl import Client, Sample, reward_of, samples_of
from polar_rl.types import SessionResult
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput


class PolarAgentLoop(AgentLoopBase):
    """Runs one session for each row of the batch. verl runs the rows of a batch concurrently and makes groups by `uid`.

    `task` has the fields of a task file, except for its id, its instruction and its number of samples. `agent_loop.yaml` sets
    it, and a row of the dataset can replace fields of it with a column `polar_task`.
    """

    def __init__(self, *args: Any, task: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._task = OmegaConf.to_container(task, resolve=True) if OmegaConf.is_config(task) else task
        # POLAR_SERVER_URL and POLAR_TOKEN, or the `polar up` of this folder.
        self._client = Client()

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        started = time.monotonic()
        task = {
            **self._task,
            **(row.get("polar_task") or {}),
            "task_id": f"verl-{uuid.uuid4()}",
            "num_samples": 1,
            "instruction": str(row["raw_prompt"][-1]["content"]),
            "sampling": _to_sampling(sampling_params),
        }
        result = await asyncio.to_thread(self._run_session, task)
        metrics = AgentLoopMetrics(generate_sequences=time.monotonic() - started)
        sample = max(samples_of(result), key=lambda each: sum(each.loss_mask), default=None) if result else None
        if result is None or sample is None:
            return self._untrained(metrics)
        return self._to_output(sample, result, metrics)

    def _run_session(self, task: Any) -> Optional[SessionResult]:
        """Returns the result of the session; the last one if it was retried by request."""
        results = list(self._client.results(self._client.submit(task)))
        return results[-1] if results else None

    def _to_output(self, sample: Sample, result: SessionResult, metrics: AgentLoopMetrics) -> AgentLoopOutput:
        start, most = sample.prompt_length, self.rollout_config.prompt_length
        if start > most:
            # verl pads prompts to this length and does not shorten them.
            raise ValueError(f"The prompt of the harness has {start} tokens; set data.max_prompt_length, now {most}, to more.")
        response = slice(start, start + self.rollout_config.response_length)
        reward = reward_of(result)
        return AgentLoopOutput(
            prompt_ids=sample.input_ids[:start],
            response_ids=sample.input_ids[response],
            response_mask=sample.loss_mask[response],
            response_logprobs=sample.logprobs[response],
            reward_score=0.0 if reward is None else reward,
            num_turns=len(sample.trace["prompt_messages"]) + len(sample.trace["response_messages"]),
            metrics=metrics,
            extra_fields=_extra_fields(result["session_id"], reward is not None, sample.versions[response]),
        )

    def _untrained(self, metrics: AgentLoopMetrics) -> AgentLoopOutput:
        """verl needs a response for each row: one token that is not trained."""
        pad = self.tokenizer.pad_token_id
        fields = _extra_fields("", False, [-1])
        return AgentLoopOutput(
            prompt_ids=[pad],
            response_ids=[pad],
            response_mask=[0],
            response_logprobs=[0.0],
            reward_score=0.0,
            metrics=metrics,
            extra_fields=fields,
        )


def _extra_fields(session_id: str, is_graded: bool, versions: list[int]) -> dict[str, Any]:
    """All rows of a batch must have the same fields. `turn_scores` and `tool_rewards` are those of verl's own agent loops."""
    known = [version for version in versions if version >= 0]
    return {
        "turn_scores": [],
        "tool_rewards": [],
        "polar_session_id": session_id,
        "polar_graded": is_graded,
        "polar_oldest_version": min(known, default=-1),
    }


def _to_sampling(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of verl in the names of a task. verl writes -1 for no limit of top_k."""
    sampling = {name: params[name] for name in ("temperature", "top_p") if params.get(name) is not None}
    if params.get("top_k", -1) > 0:
        sampling["top_k"] = params["top_k"]
    return sampling
