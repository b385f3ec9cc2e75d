"""A job on a Ray cluster: starts nodes in a placement group, runs sessions on them, and drains them."""

from __future__ import annotations

import argparse
import json
import os
import uuid
from collections import Counter
from pathlib import Path

import ray
from polar_rl import Client, reward_of
from polar_rl.types import SubmitRequest
from polar_ray import PolarNodes

AGENT = str(Path(__file__).parent.parent.joinpath("tasks/ask.sh").resolve())


def make_task(samples: int) -> SubmitRequest:
    return {
        "task_id": f"ray-{uuid.uuid4()}",
        "instruction": "Who are you?",
        "num_samples": samples,
        "runtime": {"prepare": [{"type": "upload_file", "source": AGENT, "target": "ask.sh"}]},
        "agent": {"harness": "shell", "custom_shell": {"command": "bash ask.sh"}},
        "evaluator": {"strategy": "command", "config": {"command": "grep -q content answer.txt"}},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--token-file", required=True, help="file with a token of scope node")
    parser.add_argument("--data", required=True, help="folder for the data of the nodes")
    parser.add_argument("--program", default="polar", help="command of Polar, which must handle signals itself: not npm (default: polar)")
    parser.add_argument("arguments", nargs="*", help="flags of `polar node`, after --")
    args = parser.parse_args()

    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
    client = Client()  # POLAR_SERVER_URL and POLAR_TOKEN: a token of scope trainer
    nodes = PolarNodes(
        args.nodes,
        server=os.environ["POLAR_SERVER_URL"],
        token_file=args.token_file,
        data=args.data,
        arguments=args.arguments,
        program=args.program.split(),
    )
    with nodes:
        print(json.dumps({"joined": nodes.node_ids}), flush=True)
        task_id = client.submit(make_task(args.samples))
        print(json.dumps({"task": task_id}), flush=True)
        results = list(client.results(task_id))
    sessions = Counter(result.get("node_id") for result in results)
    print(json.dumps({"sessions": dict(sorted(sessions.items())), "rewards": [reward_of(each) for each in results]}))


main()
