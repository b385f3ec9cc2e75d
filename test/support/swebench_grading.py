"""Grades logs with the functions of the swebench package. Reads cases from stdin, writes their reports to stdout."""

import importlib.util
import json
import os
import sys
import tempfile
import types

# The package's own __init__ of this folder loads docker, modal and datasets, none of which grading needs.
root = os.path.dirname(importlib.util.find_spec("swebench").origin)
harness = types.ModuleType("swebench.harness")
harness.__path__ = [os.path.join(root, "harness")]
sys.modules["swebench.harness"] = harness

from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT, TEST_EXIT_CODE  # noqa: E402
from swebench.harness.grading import get_eval_report  # noqa: E402
from swebench.harness.log_parsers import PARSER_REGISTRY  # noqa: E402
from swebench.types import TestSpec  # noqa: E402


def grade(case):
    spec = TestSpec(
        instance_id="case",
        image="",
        eval_script_list=[],
        repo="",
        version="",
        FAIL_TO_PASS=case["FAIL_TO_PASS"],
        PASS_TO_PASS=case["PASS_TO_PASS"],
        log_parser=case["parser"],
        eval_type=case["evalType"],
    )
    try:
        statuses = PARSER_REGISTRY[case["parser"]](case["log"], spec)
    except IndexError as error:
        # Some parsers fail on text that no runner prints.
        return {"error": str(error)}
    log = f"{START_TEST_OUTPUT}\n{case['log']}\n{END_TEST_OUTPUT}\n"
    if case.get("exitCode") is not None:
        log += f"{TEST_EXIT_CODE}: {case['exitCode']}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".log", newline="") as file:
        file.write(log)
        file.flush()
        prediction = {"instance_id": "case", "model_patch": "", "model_name_or_path": "case"}
        report = get_eval_report(spec, prediction, file.name, True)["case"]
    return {"statuses": list(statuses.items()), "report": report}


cases = json.load(sys.stdin)
json.dump({"parsers": list(PARSER_REGISTRY), "results": [grade(case) for case in cases]}, sys.stdout)
