"""Imitation and GRPO steps over samples that the gateway captured."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from model import Shape, Weights, hidden_states, rope_table


@dataclass
class Sample:
    """Token ids of one trace. `mask` is 1 where the policy sampled the token; `logprobs` are those of sampling."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    advantage: float = 0.0
    weight: float = 1.0

    @property
    def trained(self) -> int:
        return sum(self.mask)


class Learner:
    def __init__(self, weights: Weights, shape: Shape, device: str, rate: float, batch_tokens: int = 65536):
        self.weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        self.shape, self.device, self.batch_tokens = shape, device, batch_tokens
        self.rope = rope_table(shape, device)
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)

    def imitate(self, samples: list[Sample]) -> dict[str, float]:
        """One step of maximum likelihood on the masked tokens."""
        return self._step(samples, lambda new, old, advantage: -new)

    def grpo(self, samples: list[Sample], low: float = 0.2, high: float = 0.28) -> dict[str, float]:
        """One step of the clipped policy gradient. Each trained token counts the same."""
        return self._step(samples, _clipped(low, high))

    def measure(self, samples: list[Sample]) -> None:
        """Computes the gradient of a GRPO step without using it."""
        self._gradient(samples, _clipped(0.2, 0.28))
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def _step(self, samples: list[Sample], loss) -> dict[str, float]:
        sums = self._gradient(samples, loss)
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {**sums, "gradient": norm.item()}

    def _gradient(self, samples: list[Sample], loss) -> dict[str, float]:
        samples = [s for s in samples if s.trained > 0]
        total = sum(s.trained * s.weight for s in samples)
        sums = {"loss": 0.0, "kl": 0.0, "difference": 0.0, "tokens": 0.0}
        for batch in self._batches(samples):
            new, old, advantage, weight = self._logprobs(batch)
            value = (loss(new, old, advantage) * weight).sum() / total
            value.backward()
            with torch.no_grad():
                gap = new - old
                sums["loss"] += value.item()
                sums["kl"] += ((torch.exp(gap) - 1 - gap) * weight).sum().item() / total
                sums["difference"] = max(sums["difference"], gap.abs().max().item())
                sums["tokens"] += gap.numel()
        return sums

    @torch.no_grad()
    def score(self, samples: list[Sample]) -> list[list[float]]:
        """Log probabilities of the trained tokens under the current weights (teacher forcing), in the order of `samples`."""
        found = {}
        for batch in self._batches(samples):
            new = self._logprobs(batch)[0].tolist()
            for sample in batch:
                found[id(sample)], new = new[: sample.trained], new[sample.trained :]
        return [found[id(sample)] for sample in samples]

    def _batches(self, samples: list[Sample]):
        batch: list[Sample] = []
        for sample in sorted(samples, key=lambda s: len(s.ids)):
            if batch and (len(batch) + 1) * len(sample.ids) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(sample)
        if batch:
            yield batch

    def _logprobs(self, batch: list[Sample]):
        """New and captured log probabilities, advantages and weights of all trained tokens of a batch, as flat tensors."""
        time = max(len(s.ids) for s in batch)
        rows = [s.ids + [0] * (time - len(s.ids)) for s in batch]
        ids = torch.tensor(rows, device=self.device)
        at = [(i, j) for i, s in enumerate(batch) for j, used in enumerate(s.mask) if used]
        row, column = torch.tensor(at, device=self.device).T
        # The hidden state before a token predicts it.
        states = hidden_states(self.weights, self.shape, ids, self.rope)[row, column - 1]
        target = ids[row, column]
        parts = []
        for start in range(0, len(at), 8192):
            part = slice(start, start + 8192)
            parts.append(self._head(states[part], target[part]))
        flat = lambda values: torch.tensor(values, device=self.device, dtype=torch.float32)
        old = flat([batch[i].logprobs[j] for i, j in at])
        advantage = flat([batch[i].advantage for i, _ in at])
        weight = flat([batch[i].weight for i, _ in at])
        return torch.cat(parts), old, advantage, weight

    def _head(self, states: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        def head(h: torch.Tensor, embed: torch.Tensor) -> torch.Tensor:
            return -F.cross_entropy(F.linear(h, embed), target, reduction="none")

        if not torch.is_grad_enabled():
            return head(states, self.weights["embed"])
        return torch.utils.checkpoint.checkpoint(head, states, self.weights["embed"], use_reentrant=False)


def _clipped(low: float, high: float):
    """The loss of each token: its importance ratio times the advantage, clipped as in PPO."""

    def loss(new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        ratio = torch.exp(new - old)
        return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)

    return loss
