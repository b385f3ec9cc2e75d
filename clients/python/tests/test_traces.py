from __future__ import annotations

import importlib.util
import math
import unittest
from typing import Any, Optional

from polar_rl import NO_VERSION, advantages_of, reward_of, samples_of, to_batch, versions_of
from polar_rl.types import SessionResult, Trace


def make_trace(prompt: int, response: int, **fields: Any) -> Trace:
    trace: Trace = {
        "prompt_ids": list(range(1, prompt + 1)),
        "response_ids": list(range(101, 101 + response)),
        "loss_mask": [1] * response,
        "prompt_messages": [],
        "response_messages": [],
        "response_logprobs": [-0.5] * response,
        "reward": 1.0,
        "metadata": {"weight": 0.5},
    }
    trace.update(fields)  # type: ignore[typeddict-item]
    return trace


def make_result(session_id: str, reward: Optional[float], *traces: Trace, task_id: str = "t") -> SessionResult:
    evaluation = {} if reward is None else {"evaluation": {"outcome_reward": reward}}
    return {
        "session_id": session_id,
        "task_id": task_id,
        "status": "COMPLETED",
        "trajectory": {"status": "COMPLETED", "metadata": evaluation, "traces": list(traces)},
        "timing": {},
        "metadata": {},
    }


class Samples(unittest.TestCase):
    def test_all_lists_have_the_length_of_the_ids(self) -> None:
        (sample,) = samples_of(make_result("s", 1.0, make_trace(2, 3, loss_mask=[1, 0, 1])))
        self.assertEqual(sample.input_ids, [1, 2, 101, 102, 103])
        self.assertEqual(sample.loss_mask, [0, 0, 1, 0, 1])
        self.assertEqual(sample.logprobs, [0.0, 0.0, -0.5, -0.5, -0.5])
        self.assertEqual(sample.versions, [NO_VERSION] * 5)
        self.assertEqual((sample.prompt_length, sample.weight, sample.reward), (2, 0.5, 1.0))

    def test_a_trace_that_cannot_be_trained_is_left_out(self) -> None:
        traces = [make_trace(1, 2, response_logprobs=None), make_trace(1, 2, loss_mask=[0, 0]), make_trace(1, 2)]
        self.assertEqual(len(samples_of(make_result("s", 1.0, *traces))), 1)

    def test_versions_are_those_of_sampled_tokens(self) -> None:
        spans = [
            {"from": 0, "provenance": "template"},
            {"from": 2, "provenance": "sampled", "weight_version": "7", "newest_weight_version": "8"},
            {"from": 3, "provenance": "tool"},
            {"from": 4, "provenance": "sampled", "weight_version": "8"},
            {"from": 5, "provenance": "sampled", "weight_version": "step-9"},
            {"from": 6, "provenance": "sampled"},
        ]
        trace = make_trace(2, 5, metadata={"spans": spans})
        self.assertEqual(versions_of(trace), [-1, -1, 7, -1, 8, -1, -1])


class Advantages(unittest.TestCase):
    def test_a_session_without_a_reward_does_not_count(self) -> None:
        results = [make_result("a", 1.0), make_result("b", 0.0), make_result("c", None)]
        self.assertEqual(advantages_of(results), {"a": 0.5, "b": -0.5})
        self.assertIsNone(reward_of(results[2]))

    def test_groups_are_tasks(self) -> None:
        results = [make_result("a", 1.0), make_result("b", 0.0, task_id="u")]
        self.assertEqual(advantages_of(results), {"a": 0.0, "b": 0.0})

    def test_methods(self) -> None:
        results = [make_result("a", 1.0), make_result("b", 0.0), make_result("c", 0.0)]
        self.assertEqual(advantages_of(results, "rloo")["a"], 1.0)
        self.assertAlmostEqual(advantages_of(results, "grpo-std")["a"], math.sqrt(2), 4)
        self.assertAlmostEqual(advantages_of(results, "grpo-trl")["a"], 2 / 3 / (math.sqrt(1 / 3) + 1e-4), 9)
        self.assertAlmostEqual(advantages_of(results, "grpo-verl")["a"], 2 / 3 / (math.sqrt(1 / 3) + 1e-6), 9)
        alone = [make_result("a", 1.0)]
        self.assertEqual(advantages_of(alone, "rloo"), {})
        self.assertEqual(advantages_of(alone, "grpo-trl"), {"a": 0.0})
        self.assertAlmostEqual(advantages_of(alone, "grpo-verl")["a"], 1.0, 5)


class Batches(unittest.TestCase):
    def setUp(self) -> None:
        results = [make_result("a", 1.0, make_trace(1, 2)), make_result("b", 0.0, make_trace(2, 3))]
        ungraded = make_result("c", None, make_trace(9, 9))
        samples = [sample for result in [*results, ungraded] for sample in samples_of(result)]
        self.batch = to_batch(samples, advantages_of(results), pad_id=99)

    def test_rows_are_padded_and_ungraded_samples_left_out(self) -> None:
        batch = self.batch
        self.assertEqual(batch.input_ids, [[1, 101, 102, 99, 99], [1, 2, 101, 102, 103]])
        self.assertEqual(batch.attention_mask, [[1, 1, 1, 0, 0], [1] * 5])
        self.assertEqual(batch.loss_mask, [[0, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
        self.assertEqual(batch.logprobs[0], [0.0, -0.5, -0.5, 0.0, 0.0])
        self.assertEqual(batch.versions[0], [NO_VERSION] * 5)
        self.assertEqual((batch.advantages, batch.weights), ([0.5, -0.5], [0.5, 0.5]))

    def test_an_empty_batch_has_no_rows(self) -> None:
        self.assertEqual(to_batch([], {}).input_ids, [])

    @unittest.skipIf(importlib.util.find_spec("numpy") is None, "numpy is not installed")
    def test_numpy_arrays_have_the_types_of_trainers(self) -> None:
        arrays = self.batch.numpy()
        types = {name: str(array.dtype) for name, array in arrays.items()}
        self.assertEqual(types, TYPES)
        self.assertEqual(arrays["input_ids"].tolist(), self.batch.input_ids)
        self.assertEqual(arrays["advantages"].tolist(), [0.5, -0.5])
        self.assertEqual(str(self.batch.numpy(ids="int32")["input_ids"].dtype), "int32")
        (sample,) = samples_of(make_result("a", 1.0, make_trace(1, 2)))
        self.assertEqual(sample.numpy()["logprobs"].tolist(), [0.0, -0.5, -0.5])

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "torch is not installed")
    def test_torch_tensors_have_the_types_of_trainers(self) -> None:
        tensors = self.batch.torch()
        types = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
        self.assertEqual(types, TYPES)
        self.assertEqual(tensors["input_ids"].tolist(), self.batch.input_ids)


TYPES = {
    "input_ids": "int64",
    "attention_mask": "bool",
    "loss_mask": "bool",
    "logprobs": "float32",
    "versions": "int64",
    "advantages": "float32",
    "weights": "float32",
}
