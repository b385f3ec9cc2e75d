"""Tests that need neither a GPU nor packages: `python3 -m unittest` in this folder."""

import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from expert import Expert
from report import p_value
from tasks import make_task

COUNT = 12
HARNESSES = {
    "pi": ["read", "bash", "edit", "write"],
    "mini_swe_agent": ["bash"],
    "codex": ["exec_command"],
}


class Tasks(unittest.TestCase):
    def test_the_expert_solves_every_task_with_the_tools_of_each_harness(self) -> None:
        for names in HARNESSES.values():
            for index in range(COUNT):
                task = make_task(1, index, is_held_out=index % 2 == 1)
                with self.subTest(tools=names, task=task.instruction), tempfile.TemporaryDirectory() as folder:
                    run(task.prepare(), folder)
                    self.assertNotEqual(status(task.check, folder), 0, "the check must fail before the task is done")
                    calls = play(Expert({task.instruction: list(task.plan)}), task.instruction, names, folder)
                    self.assertEqual(status(task.check, folder), 0, calls)
                    self.assertGreaterEqual(len(calls), 2)

    def test_held_out_tasks_are_new(self) -> None:
        trained = {make_task(seed * 100 + part, i).instruction for seed in (1, 2, 3) for part in (1, 2) for i in range(200)}
        held_out = {make_task(1, i, is_held_out=True).instruction for i in range(100)}
        self.assertGreater(len(held_out), 95)
        self.assertEqual(trained & held_out, set())

    def test_an_unknown_task_is_an_error(self) -> None:
        with self.assertRaises(KeyError):
            Expert({}).answer([{"role": "user", "content": "?"}], [])


class Report(unittest.TestCase):
    def test_p_value(self) -> None:
        # 3 of 4 against 1 of 4: (16 + 1) / 70.
        self.assertAlmostEqual(p_value({"successes": 1, "sessions": 4}, {"successes": 3, "sessions": 4}), 17 / 70)
        self.assertAlmostEqual(p_value({"successes": 0, "sessions": 5}, {"successes": 0, "sessions": 5}), 1.0)


def play(expert: Expert, instruction: str, names: list[str], folder: str) -> list[str]:
    """Runs the tool calls of the expert as a harness would, until its final answer."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    messages: list[dict] = [{"role": "user", "content": f"Your task: {instruction}"}]
    calls: list[str] = []
    while True:
        text = expert.answer(messages, tools)
        found = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", text)
        if found is None or "COMPLETE_TASK" in text:
            return calls
        call = json.loads(found[1])
        calls.append(text)
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": use(call, folder)}]


def use(call: dict, folder: str) -> str:
    name, arguments = call["name"], call["arguments"]
    if name in ("bash", "exec_command"):
        return run(arguments.get("command") or arguments["cmd"], folder)
    path = f"{folder}/{arguments['path']}"
    if name == "read":
        return Path(path).read_text()
    if name == "write":
        run(f"mkdir -p $(dirname {path})", folder)
        return str(Path(path).write_text(arguments["content"]))
    text = Path(path).read_text()
    for edit in arguments["edits"]:
        assert text.count(edit["oldText"]) == 1, f"{edit['oldText']} must occur once in {text}"
        text = text.replace(edit["oldText"], edit["newText"])
    return str(Path(path).write_text(text))


def run(command: str, folder: str) -> str:
    return subprocess.run(["bash", "-c", command], cwd=folder, check=True, capture_output=True, text=True).stdout


def status(command: str, folder: str) -> int:
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True).returncode


if __name__ == "__main__":
    unittest.main()
