"""Lists of samples and batches as arrays. numpy and torch are imported on first use: neither is a dependency."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, Mapping

IdType = Literal["int32", "int64"]

_KINDS: Mapping[str, str] = {
    "input_ids": "ids",
    "attention_mask": "bool",
    "loss_mask": "bool",
    "logprobs": "float",
    "versions": "ids",
    "advantages": "float",
    "weights": "float",
}


def to_numpy(source: object, ids: IdType) -> dict[str, Any]:
    numpy = import_module("numpy")
    types = {"ids": ids, "bool": "bool", "float": "float32"}
    return {name: numpy.array(value, dtype=types[kind]) for name, kind, value in _fields(source)}


def to_torch(source: object, ids: IdType, device: Any) -> dict[str, Any]:
    torch = import_module("torch")
    types = {"ids": getattr(torch, ids), "bool": torch.bool, "float": torch.float32}
    return {name: torch.tensor(value, dtype=types[kind], device=device) for name, kind, value in _fields(source)}


def _fields(source: object) -> list[tuple[str, str, Any]]:
    return [(name, kind, getattr(source, name)) for name, kind in _KINDS.items() if hasattr(source, name)]
