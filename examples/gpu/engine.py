"""Continuous batching over one GPU: requests enter and leave the batch between two tokens, and share prefixes."""

import queue
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Callable

import torch

from model import Cache, Shape, Weights

# Prompts are read in parts, so that a long prompt delays the running requests by one part only.
PREFILL_TOKENS = 2048


@dataclass(eq=False)
class Request:
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    stop_ids: frozenset[int]
    seed: int
    # Called from the engine's thread with each token; true ends the request.
    on_token: Callable[[int, float], bool]
    # Called once: "stop", "length", "abort" or an error text.
    on_end: Callable[[str], None]
    is_aborted: bool = False
    sampled: list[int] = field(default_factory=list)
    draws: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draws = random.Random(self.seed)


@dataclass(eq=False)
class Slot:
    index: int
    # Ids whose keys and values the slot holds.
    filled: list[int] = field(default_factory=list)
    request: Request | None = None
    used: float = 0.0


class Engine:
    def __init__(self, weights: Weights, shape: Shape, slots: int, length: int, device: str):
        self.cache = Cache(weights, shape, slots, length, device)
        self.context = length - 1
        self.slots = [Slot(i) for i in range(slots)]
        self.waiting: queue.Queue[Request] = queue.Queue()
        self.changes: queue.Queue[Callable[[], None]] = queue.Queue()
        self.prompt_tokens = self.shared_tokens = self.sampled_tokens = self.steps = 0
        self.busy_seconds = 0.0
        self.cache.positions.fill_(length - 1)
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, request: Request) -> None:
        self.waiting.put(request)

    @property
    def running(self) -> int:
        return sum(slot.request is not None for slot in self.slots)

    def between_steps(self, change: Callable[[], None]) -> None:
        """Runs `change` in the engine's thread between two steps, and returns when it has ended."""
        done = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                change()
            except BaseException as cause:
                failure.append(cause)
            done.set()

        self.changes.put(run)
        done.wait()
        if failure:
            raise failure[0]

    def replace_weights(self, weights: Weights) -> None:
        """Overwrites the weights in place. Prefixes that idle slots hold belong to the old weights and are dropped."""

        def change() -> None:
            for name, tensor in self.cache.weights.items():
                tensor.copy_(weights[name])
            for slot in self.slots:
                if slot.request is None:
                    slot.filled = []

        self.between_steps(change)

    def _work(self) -> None:
        while True:
            while not self.changes.empty():
                self.changes.get()()
            active = [slot for slot in self.slots if slot.request]
            if not active and self.waiting.empty():
                time.sleep(0.0005)
                continue
            began = time.monotonic()
            # One new request for each step keeps the running ones going; an idle engine admits all at once.
            admitted = 0
            while not self.waiting.empty() and len(active) < len(self.slots) and admitted < max(4, len(self.slots) // 8):
                self._admit(self.waiting.get())
                active = [slot for slot in self.slots if slot.request]
                admitted += 1
            if active:
                self._step(active)
            self.busy_seconds += time.monotonic() - began

    @torch.inference_mode()
    def _admit(self, request: Request) -> None:
        if request.is_aborted:
            return request.on_end("abort")
        # The last id of the prompt is always read again: its logits are needed.
        usable = len(request.prompt) - 1
        shared = {slot.index: common_prefix(slot.filled, request.prompt, usable) for slot in self.slots}
        source = max(self.slots, key=lambda slot: shared[slot.index])
        idle = [slot for slot in self.slots if slot.request is None]
        if source.request is None:
            target = source
        else:
            target = min(idle, key=lambda slot: slot.used)
            self.cache.copy_prefix(source.index, target.index, shared[source.index])
        start = shared[source.index]
        target.filled = request.prompt[:start]
        logits = None
        for at in range(start, len(request.prompt), PREFILL_TOKENS):
            logits = self.cache.prefill(target.index, request.prompt[at : at + PREFILL_TOKENS], at)
        target.filled = list(request.prompt)
        target.request = request
        self.prompt_tokens += len(request.prompt)
        self.shared_tokens += start
        [token], [logprob] = sample(logits[None], [request])
        self._take(target, token, logprob)
        self._place([target])

    @torch.inference_mode()
    def _step(self, active: list[Slot]) -> None:
        longest = max(len(slot.filled) for slot in active) + 1
        logits = self.cache.decode(longest)
        index = torch.tensor([slot.index for slot in active], device=self.cache.device)
        requests = [slot.request for slot in active]
        ids, logprobs = sample(logits[index], requests)
        self.steps += 1
        for slot, token, logprob in zip(active, ids, logprobs):
            slot.filled.append(slot.request.sampled[-1])
            self._take(slot, token, logprob)
        self._place(active)

    def _take(self, slot: Slot, token: int, logprob: float) -> None:
        request = slot.request
        request.sampled.append(token)
        self.sampled_tokens += 1
        end = None
        if request.on_token(token, logprob) or token in request.stop_ids:
            end = "stop"
        elif len(request.sampled) >= request.max_tokens or len(slot.filled) + 1 >= self.context:
            end = "length"
        if request.is_aborted:
            end = "abort"
        if end is not None:
            slot.request, slot.used = None, time.monotonic()
            request.on_end(end)

    def _place(self, slots: list[Slot]) -> None:
        """Writes what the next step reads: the last sampled id of each slot and its position."""
        rows = [
            (slot.index, slot.request.sampled[-1], len(slot.filled)) if slot.request else (slot.index, 0, self.context)
            for slot in slots
        ]
        index, tokens, positions = torch.tensor(rows).T.to(self.cache.device)
        self.cache.tokens[index] = tokens
        self.cache.positions[index] = positions


def common_prefix(a: list[int], b: list[int], limit: int) -> int:
    end = min(len(a), len(b), limit)
    if a[:end] == b[:end]:
        return end
    low, high = 0, end
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def sample(logits: torch.Tensor, requests: list[Request]) -> tuple[list[int], list[float]]:
    """Samples by inverting the distribution at one random number a request, so that a seed gives the same tokens in any batch."""
    device = logits.device
    logits = logits.float()
    temperature = torch.tensor([max(r.temperature, 1e-6) for r in requests], device=device)[:, None]
    probabilities = torch.softmax(logits / temperature, dim=-1)
    if any(r.top_p < 1 for r in requests):
        ordered, order = probabilities.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        top_p = torch.tensor([r.top_p for r in requests], device=device)[:, None]
        probabilities = torch.zeros_like(probabilities).scatter(1, order, ordered.masked_fill(before >= top_p, 0))
    cumulative = probabilities.double().cumsum(dim=-1)
    at = torch.tensor([r.draws.random() for r in requests], dtype=torch.float64, device=device)[:, None]
    drawn = torch.searchsorted(cumulative, at * cumulative[:, -1:], right=True).clamp(max=logits.shape[1] - 1)
    greedy = torch.tensor([r.temperature == 0 for r in requests], device=device)[:, None]
    ids = torch.where(greedy, logits.argmax(dim=-1, keepdim=True), drawn)
    logprobs = torch.log_softmax(logits, dim=-1).gather(1, ids)
    both = torch.cat([ids.double(), logprobs.double()], dim=1).tolist()
    return [int(row[0]) for row in both], [row[1] for row in both]
