"""A scripted expert in place of the model: it answers with the next step of a task's plan, as a tool call of the harness."""

import json
import shlex

from tasks import Step

FINISH_MINI_SWE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Expert:
    def __init__(self, plans: dict[str, list[Step]]):
        self.plans = plans

    def answer(self, messages: list[dict], tools: list[dict]) -> str:
        """The text that the model should have written. Raises KeyError for a conversation without a known task."""
        texts = [_text(message) for message in messages if message["role"] == "user"]
        plan = next((plan for known, plan in self.plans.items() if any(known in text for text in texts)), None)
        if plan is None:
            raise KeyError("no plan for this conversation")
        done = sum(message["role"] == "assistant" for message in messages)
        names = {tool["function"]["name"]: tool["function"] for tool in tools}
        if done < len(plan):
            return _tool_call(*_render(plan[done], names))
        if "bash" in names and len(names) == 1:
            return _tool_call("bash", {"command": FINISH_MINI_SWE})
        return "Done."


def _text(message: dict) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _tool_call(name: str, arguments: dict) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _render(step: Step, names: dict[str, dict]) -> tuple[str, dict]:
    """A step as a call of a tool that the harness offers: its file tools if it has them, else its shell."""
    match step.verb, step.arguments:
        case "read", (path,) if "read" in names:
            return "read", {"path": path}
        case "write", (path, text) if "write" in names:
            return "write", {"path": path, "content": text}
        case "replace", (path, old, new) if "edit" in names:
            return "edit", {"path": path, "edits": [{"oldText": old, "newText": new}]}
        case "read", (path,):
            return _shell(f"cat {path}", names)
        case "write", (path, text):
            folder = path.rpartition("/")[0]
            make = f"mkdir -p {folder} && " if folder else ""
            return _shell(f"{make}echo {shlex.quote(text)} > {path}", names)
        case "replace", (path, old, new):
            return _shell(f"sed -i {shlex.quote(f's/{old}/{new}/')} {path}", names)
        case "run", (command,):
            return _shell(command, names)
    raise ValueError(f"unknown step {step.verb}")


def _shell(command: str, names: dict[str, dict]) -> tuple[str, dict]:
    if "exec_command" in names:
        return "exec_command", {"cmd": command}
    if "shell" in names:
        return "shell", {"command": ["bash", "-lc", command]}
    if "shell_command" in names:
        return "shell_command", {"command": command}
    return "bash", {"command": command}
