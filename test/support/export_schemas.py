"""Reads files of `polar export` with their consumers' own models, and prints the result as one JSON object."""

import json
import sys
import types
from pathlib import Path

import msgspec
from pydantic import TypeAdapter

# nemo_gym.openai_utils imports its HTTP client for functions that are not used here.
server_utils = types.ModuleType("nemo_gym.server_utils")
server_utils.__getattr__ = lambda name: object
sys.modules["nemo_gym.server_utils"] = server_utils

from harbor.models.trajectories import Trajectory  # noqa: E402
from nemo_gym.openai_utils import (  # noqa: E402
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam  # noqa: E402

messages_of = TypeAdapter(list[ChatCompletionMessageParam])
tools_of = TypeAdapter(list[ChatCompletionToolParam])


# prime-rl is not on PyPI: the first fields of its TrainingSample, and the last.
class TrainingSample(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    mm_kwargs: dict | None = None
    routed_experts: list | None = None
    mm_token_type_ids: list[int] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None


def lines(name):
    return [line for line in (Path(sys.argv[1]) / name).read_text("utf-8").split("\n") if line]


def atif(line):
    trajectory = Trajectory.model_validate_json(line)
    steps = [step for one in [trajectory, *(trajectory.subagent_trajectories or [])] for step in one.steps]
    return sorted([step.extra["turn_id"], step.metrics.completion_token_ids] for step in steps if step.metrics)


def nemo_gym(line):
    row = json.loads(line)
    response = NeMoGymResponse.model_validate(row["response"])
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(row["responses_create_params"])
    assert len(params.input) == len(row["responses_create_params"]["input"])
    trained = [item for item in response.output if getattr(item, "generation_token_ids", None)]
    assert len(response.output) == len(row["response"]["output"])
    return [item.generation_token_ids for item in trained]


def openai_sft(line):
    row = json.loads(line)
    messages = list(messages_of.validate_python(row["messages"]))
    tools_of.validate_python(row.get("tools", []))
    return [message["role"] for message in messages]


def prime_rl(line):
    sample = msgspec.json.decode(line, type=TrainingSample)
    return [sample.token_ids, [int(trained) for trained in sample.mask], sample.logprobs]


readers = {"atif": atif, "nemo_gym": nemo_gym, "openai_sft": openai_sft, "prime_rl": prime_rl}
print(json.dumps({name: [read(line) for line in lines(f"{name}.jsonl")] for name, read in readers.items()}))
