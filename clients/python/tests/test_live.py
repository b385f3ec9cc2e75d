"""Runs against a real server with a node; the environment names it: POLAR_SERVER_URL and POLAR_TOKEN."""

from __future__ import annotations

import os
import unittest
import uuid
from typing import Callable, Optional

from polar_rl import Client, PolarError, advantages_of, reward_of, samples_of
from polar_rl.types import SessionResult, SubmitRequest

from .support import CuttingProxy, HurriedClock

URL = os.environ.get("POLAR_SERVER_URL", "")

# The agent calls the model once. About half of the sessions get a reward of 1.
AGENT = r"""bash -c '
address=${OPENAI_BASE_URL#http://}; host=${address%%/*}
body="{\"model\":\"tiny\",\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"
exec 3<>"/dev/tcp/${host%:*}/${host#*:}" || exit 1
printf "%s\r\n" "POST /${address#*/}/chat/completions HTTP/1.1" "Host: $host" \
  "Authorization: Bearer $OPENAI_API_KEY" "Content-Type: application/json" \
  "Content-Length: ${#body}" "Connection: close" "" >&3
printf "%s" "$body" >&3
cat <&3 > answer.txt; echo $((RANDOM % 2)) > luck.txt
'"""


def make_task(samples: int, command: str = AGENT, task_id: Optional[str] = None) -> SubmitRequest:
    return {
        "task_id": task_id or f"py-{uuid.uuid4()}",
        "instruction": "Hi",
        "num_samples": samples,
        "runtime": {"backend": "local"},
        "agent": {"harness": "shell", "custom_shell": {"command": command}},
        "builder": {"strategy": "prefix_merging"},
        "evaluator": {"strategy": "command", "config": {"command": "grep -q 1 luck.txt"}},
    }


@unittest.skipIf(URL == "", "POLAR_SERVER_URL is not set")
class LiveServer(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client()

    def test_results_of_many_tasks_arrive_once_although_connections_are_cut(self) -> None:
        with CuttingProxy(URL, cuts=40, seed=7) as proxy:
            client = Client(proxy.url, timeout=60, retry_seconds=1000, clock=HurriedClock())
            tasks = [make_task(2), make_task(1)]
            ids = client.submit_many(tasks)
            self.assertEqual(ids, [task["task_id"] for task in tasks])
            results = list(client.results(*ids))
            self.assertEqual([task["status"] for task in client.wait(*ids)], ["completed"] * 2)
        # Connections that were open at the last cut may be cut as well.
        self.assertLessEqual(proxy.cuts_left, 0)
        sessions = [each["session_id"] for task in ids for each in self.client.list_task_sessions(task)["sessions"]]
        self.assertEqual(sorted(result["session_id"] for result in results), sorted(sessions))
        for result in results:
            self.check_result(result)
        for task_id in ids:
            self.assertAlmostEqual(sum(a for s, a in advantages_of(results).items() if s in self.sessions(task_id)), 0)

    def sessions(self, task_id: str) -> set[str]:
        return {each["session_id"] for each in self.client.list_task_sessions(task_id)["sessions"]}

    def check_result(self, result: SessionResult) -> None:
        self.assertEqual(result["status"], "COMPLETED")
        self.assertIn(reward_of(result), (0.0, 1.0))
        (sample,) = samples_of(result)
        self.assertEqual(sample.reward, reward_of(result))
        self.assertGreater(sum(sample.loss_mask), 0)
        lengths = {len(values) for values in (sample.input_ids, sample.loss_mask, sample.logprobs, sample.versions)}
        self.assertEqual(lengths, {len(sample.input_ids)})
        self.assertTrue(all(logprob <= 0 for logprob in sample.logprobs))
        # The compressed form is the same result.
        self.client._transport._headers["Accept-Encoding"] = "gzip"
        self.assertEqual(self.client.get_session_result(result["session_id"]), result)
        (streamed,) = [
            each for each in self.client.stream_task_results(result["task_id"]) if each["session_id"] == sample.session_id
        ]
        self.assertEqual(streamed, result)

    def test_a_key_makes_a_repeated_submit_the_same_task(self) -> None:
        key = str(uuid.uuid4())
        task = make_task(1, "true")
        self.assertEqual(self.client.submit(task, key=key), task["task_id"])
        (ended,) = self.client.wait(task["task_id"])
        self.assertEqual(self.client.submit(task, key=key), task["task_id"])
        self.assertEqual(self.client.get_task(task["task_id"], results="reference"), ended)

    def test_a_cancelled_task_ends_its_results(self) -> None:
        task_id = self.client.submit(make_task(1, "sleep 600"))
        with self.assertRaises(TimeoutError):
            self.client.wait(task_id, timeout=0.01)
        results = self.client.results(task_id)
        (cancelled,) = self.client.cancel(task_id)
        self.assertEqual(cancelled["status"], "cancelled")
        self.assertEqual([result.get("polar_status") for result in results], ["CANCELLED"])

    def test_the_policy_version_never_decreases(self) -> None:
        version = self.client.policy_version() + 1
        self.assertEqual(self.client.set_policy_version(version), version)
        self.assertEqual(self.client.set_policy_version(version - 1), version)

    def test_gateways_are_paused_while_weights_are_updated(self) -> None:
        version = self.client.policy_version() + 1
        with self.client.updating_weights(version):
            self.assertTrue(self.client.get_policy()["paused"])
        after = self.client.get_policy()
        self.assertEqual((after["version"], after["paused"]), (version, False))
        with self.assertRaises(ValueError), self.client.updating_weights(version + 1):
            raise ValueError
        after = self.client.get_policy()
        self.assertEqual((after["version"], after["paused"]), (version, False))

    def test_failures_have_the_codes_of_the_server(self) -> None:
        cases: dict[str, Callable[[], object]] = {
            "request.not-found": lambda: self.client.get_task("no-such-task"),
            "request.unauthorized": lambda: Client(token="wrong").policy_version(),
            "request.malformed": lambda: self.client.submit({**make_task(1), "num_sample": 2}),  # type: ignore[typeddict-unknown-key]
            "request.no-node": lambda: self.client.submit({**make_task(1), "requires": ["no-such-label"]}),
        }
        for code, call in cases.items():
            with self.assertRaises(PolarError) as caught:
                call()
            self.assertEqual((caught.exception.code, caught.exception.blame), (code, "caller"))
        with self.assertRaises(PolarError) as many:
            self.client.submit_many([{**make_task(1), "requires": ["no-such-label"]}])
        self.assertEqual(many.exception.code, "request.no-node")
