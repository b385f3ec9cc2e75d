"""SmolLM2 (Llama architecture) in plain PyTorch: one set of weights for sampling and for training.

The forward passes below are written for exact log probabilities, not for size: float32 weights, and the same
operations in both passes, so that a sampled token's log probability equals the recomputed one up to rounding.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocab: int
    context: int
    theta: float
    eps: float

    @staticmethod
    def load(folder: Path) -> "Shape":
        c = json.loads((folder / "config.json").read_text())
        heads = c["num_attention_heads"]
        return Shape(
            layers=c["num_hidden_layers"],
            hidden=c["hidden_size"],
            heads=heads,
            kv_heads=c["num_key_value_heads"],
            head=c.get("head_dim") or c["hidden_size"] // heads,
            mlp=c["intermediate_size"],
            vocab=c["vocab_size"],
            context=c["max_position_embeddings"],
            theta=float(c.get("rope_theta") or c["rope_parameters"]["rope_theta"]),
            eps=c["rms_norm_eps"],
        )


Weights = dict[str, torch.Tensor]


def load_weights(folder: Path, shape: Shape, device: str) -> Weights:
    """Reads a HuggingFace folder. Query, key and value of a layer become one matrix, gate and up another."""
    raw: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        raw.update(load_file(file))
    if "embed" in raw:
        return {name: tensor.to(device) for name, tensor in raw.items()}
    weights = {"embed": raw["model.embed_tokens.weight"], "norm": raw["model.norm.weight"]}
    for i in range(shape.layers):
        at = f"model.layers.{i}."
        attention, mlp = at + "self_attn.", at + "mlp."
        weights[f"{i}.qkv"] = torch.cat([raw[f"{attention}{part}_proj.weight"] for part in "qkv"])
        weights[f"{i}.out"] = raw[attention + "o_proj.weight"]
        weights[f"{i}.gate_up"] = torch.cat([raw[mlp + "gate_proj.weight"], raw[mlp + "up_proj.weight"]])
        weights[f"{i}.down"] = raw[mlp + "down_proj.weight"]
        weights[f"{i}.norm1"] = raw[at + "input_layernorm.weight"]
        weights[f"{i}.norm2"] = raw[at + "post_attention_layernorm.weight"]
    return {name: tensor.to(device, torch.float32).contiguous() for name, tensor in weights.items()}


def save_weights(weights: Weights, file: Path) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, file)


def rope_table(shape: Shape, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = 1.0 / shape.theta ** (torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head)
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), inverse)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


def layer(
    weights: Weights,
    shape: Shape,
    i: int,
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    attend,
) -> torch.Tensor:
    """One transformer layer over `x` (batch, time, hidden). `attend(q, k, v)` gives the attention's output."""
    batch, time, _ = x.shape
    h = F.rms_norm(x, (shape.hidden,), weights[f"{i}.norm1"], shape.eps)
    width, kv_width = shape.heads * shape.head, shape.kv_heads * shape.head
    q, k, v = F.linear(h, weights[f"{i}.qkv"]).split([width, kv_width, kv_width], dim=-1)
    q = rotate(q.view(batch, time, shape.heads, shape.head), cos, sin).transpose(1, 2)
    k = rotate(k.view(batch, time, shape.kv_heads, shape.head), cos, sin).transpose(1, 2)
    v = v.view(batch, time, shape.kv_heads, shape.head).transpose(1, 2)
    out = attend(q, k, v).transpose(1, 2).reshape(batch, time, width)
    x = x + F.linear(out, weights[f"{i}.out"])
    h = F.rms_norm(x, (shape.hidden,), weights[f"{i}.norm2"], shape.eps)
    gate, up = F.linear(h, weights[f"{i}.gate_up"]).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, weights[f"{i}.down"])


def hidden_states(weights: Weights, shape: Shape, ids: torch.Tensor, rope) -> torch.Tensor:
    """The last hidden states of whole sequences (batch, time), for training. Padding stands at the end."""
    cos, sin = (table[None, : ids.shape[1], None, :] for table in rope)
    group = shape.heads // shape.kv_heads

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=True
        )

    x = F.embedding(ids, weights["embed"])
    for i in range(shape.layers):
        x = torch.utils.checkpoint.checkpoint(
            layer, weights, shape, i, x, cos, sin, attend, use_reentrant=False
        ) if torch.is_grad_enabled() else layer(weights, shape, i, x, cos, sin, attend)
    return F.rms_norm(x, (shape.hidden,), weights["norm"], shape.eps)


class Cache:
    """Keys and values of `slots` sequences, and the two passes that read and extend them."""

    def __init__(self, weights: Weights, shape: Shape, slots: int, length: int, device: str):
        self.weights, self.shape, self.slots, self.length, self.device = weights, shape, slots, length, device
        self.rope = rope_table(shape, device)
        size = (shape.layers, slots, shape.kv_heads, length, shape.head)
        self.keys = torch.zeros(size, device=device)
        self.values = torch.zeros(size, device=device)
        self.tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self.positions = torch.zeros(slots, dtype=torch.long, device=device)
        self.every_slot = torch.arange(slots, device=device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for store in (self.keys, self.values):
            store[:, target, :, :length] = store[:, source, :, :length]

    @torch.inference_mode()
    def prefill(self, slot: int, ids: list[int], start: int) -> torch.Tensor:
        """Extends a slot, whose first `start` positions are filled, by ids. Returns the logits after the last id."""
        shape, end = self.shape, start + len(ids)
        at = torch.arange(start, end, device=self.device)
        cos, sin = (table[at][None, :, None, :] for table in self.rope)
        mask = at[:, None] >= torch.arange(end, device=self.device)[None, :]
        group = shape.heads // shape.kv_heads
        x = F.embedding(torch.tensor([ids], device=self.device), self.weights["embed"])
        for i in range(shape.layers):

            def attend(q, k, v, i=i):
                self.keys[i, slot, :, start:end] = k[0]
                self.values[i, slot, :, start:end] = v[0]
                return F.scaled_dot_product_attention(
                    q,
                    self.keys[i, slot : slot + 1, :, :end].repeat_interleave(group, 1),
                    self.values[i, slot : slot + 1, :, :end].repeat_interleave(group, 1),
                    attn_mask=mask,
                )

            x = layer(self.weights, shape, i, x, cos, sin, attend)
        x = F.rms_norm(x[:, -1], (shape.hidden,), self.weights["norm"], shape.eps)
        return F.linear(x, self.weights["embed"])[0]

    def decode(self, longest: int) -> torch.Tensor:
        """Logits of all slots after `tokens` at `positions`. `longest` is the largest position in use, plus one."""
        length = next(size for size in self.lengths() if size >= longest)
        if not self.device.startswith("cuda"):
            with torch.inference_mode():
                return self._decode(length)
        if length not in self.graphs:
            self.graphs[length] = self._record(length)
        graph, logits = self.graphs[length]
        graph.replay()
        return logits

    def lengths(self) -> list[int]:
        steps = [1024]
        while steps[-1] < self.length:
            steps.append(min(self.length, steps[-1] + max(1024, steps[-1] // 2)))
        return steps

    @torch.inference_mode()
    def _record(self, length: int) -> tuple["torch.cuda.CUDAGraph", torch.Tensor]:
        saved = self.positions.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._decode(length)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._decode(length)
        self.positions.copy_(saved)
        return graph, logits

    def _decode(self, length: int) -> torch.Tensor:
        shape = self.shape
        cos, sin = (table[self.positions][:, None, None, :] for table in self.rope)
        mask = (torch.arange(length, device=self.device)[None, :] <= self.positions[:, None])[:, None, None, :]
        x = F.embedding(self.tokens, self.weights["embed"])[:, None]
        for i in range(shape.layers):

            def attend(q, k, v, i=i):
                self.keys[i, self.every_slot, :, self.positions] = k[:, :, 0]
                self.values[i, self.every_slot, :, self.positions] = v[:, :, 0]
                # The query heads of one key head are its rows: keys are read once, not once for each query head.
                rows = q.view(self.slots, shape.kv_heads, -1, shape.head)
                scores = rows @ self.keys[i, :, :, :length].transpose(-1, -2) / math.sqrt(shape.head)
                out = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ self.values[i, :, :, :length]
                return out.view(self.slots, shape.heads, 1, shape.head)

            x = layer(self.weights, shape, i, x, cos, sin, attend)
        x = F.rms_norm(x[:, 0], (shape.hidden,), self.weights["norm"], shape.eps)
        return F.linear(x, self.weights["embed"])
