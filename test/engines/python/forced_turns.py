"""A logits processor of vLLM that forces scripted answers: `--logits-processors forced_turns:ForcedTurns`.

FORCED_TURNS names a JSON file: {"scenarios": {name: [turn, ...]}, "default": turn or null}. A turn is null (the model
answers freely), {"ids": [...]} (exactly these tokens) or {"free": n} (n tokens of the model, then the end of the turn).
The last marker `SCRIPT:name` in a user message of the prompt selects the scenario; the number of assistant turns after it
selects the turn. The file is read again when it changes. vLLM computes raw log probabilities before logits processors, so
they stay those of the model.
"""

import json
import os
import re
from pathlib import Path

from tokenizers import Tokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

MARKER = re.compile(r"SCRIPT:([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)")


def read_messages(prompt: str) -> list[tuple[str, str]]:
    """Messages of a rendered ChatML prompt, without the answer to be written."""
    messages = []
    for block in prompt.split("<|im_start|>")[1:]:
        role, _, content = block.partition("\n")
        if "<|im_end|>" not in content:
            continue
        content = content.partition("<|im_end|>")[0]
        is_result = role == "user" and content.lstrip().startswith("<tool_response>")
        messages.append(("tool" if is_result else role, content))
    return messages


def choose_turn(script: dict, prompt: str) -> dict | None:
    messages = read_messages(prompt)
    for i in range(len(messages) - 1, -1, -1):
        role, content = messages[i]
        markers = MARKER.findall(content) if role == "user" else []
        if not markers:
            continue
        turns = script["scenarios"].get(markers[-1])
        if turns is None:
            break
        turn = sum(1 for later, _ in messages[i + 1 :] if later == "assistant")
        return turns[min(turn, len(turns) - 1)]
    return script.get("default")


class ForcedTurns(AdapterLogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        super().__init__(vllm_config, device, is_pin_memory)
        folder = Path(vllm_config.model_config.model)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
        self.file = Path(os.environ["FORCED_TURNS"])
        self.changed, self.script = None, {"scenarios": {}}

    def is_argmax_invariant(self) -> bool:
        return False

    def read_script(self) -> dict:
        changed = self.file.stat().st_mtime_ns if self.file.exists() else None
        if changed is not None and changed != self.changed:
            self.changed, self.script = changed, json.loads(self.file.read_text())
        return self.script

    def new_req_logits_processor(self, params):
        forced = {}

        def force(prompt_ids, output_ids, logits):
            if "turn" not in forced:
                prompt = self.tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
                forced["turn"] = choose_turn(self.read_script(), prompt)
            turn, at = forced["turn"], len(output_ids)
            if turn is None:
                return logits
            if "free" in turn:
                if at < turn["free"]:
                    return logits
                wanted = self.eos
            else:
                wanted = turn["ids"][at] if at < len(turn["ids"]) else self.eos
            value = logits[wanted].clone()
            logits.fill_(float("-inf"))
            logits[wanted] = value
            return logits

        return force
