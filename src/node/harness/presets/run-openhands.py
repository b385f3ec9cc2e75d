import gc
import json
import os
import sys
from pathlib import Path

own = Path(__file__).parent
instruction = Path(os.environ.pop("POLAR_INSTRUCTION_FILE")).read_text(encoding="utf-8")
config = json.loads((own / "openhands.json").read_text(encoding="utf-8"))
# Otherwise OpenHands downloads prices, refuses short contexts, prints a banner and logs every step.
quiet = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "ALLOW_SHORT_CONTEXT_WINDOWS": "true",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LOG_LEVEL": "ERROR",
}
before = {name: os.environ.get(name) for name in quiet}
os.environ.update(quiet)

# Four thousand modules stay in memory: searching them for garbage would cost a tenth of the start.
gc.disable()
from openhands.sdk import LLM, Agent, AgentContext, Conversation, ConversationExecutionStatus, Tool
from openhands.sdk.context.condenser import default_condenser
from openhands.sdk.event import ActionEvent, MessageEvent
from openhands.sdk.event.conversation_error import ConversationErrorEvent
from openhands.sdk.skills import load_skills_from_dir
from openhands.sdk.tool.builtins import FinishAction
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalTool
gc.freeze()
gc.enable()

llm = LLM(**config["llm"])
options = config["agent"]
if config["condenser"]:
    options["condenser"] = default_condenser(llm.model_copy(update={"usage_id": "condenser"}))
if config["skills"] is not None:
    found = load_skills_from_dir(config["skills"])
    skills = [skill for group in found for skill in group.values()]
    # Otherwise the prompt contains the time, which differs between sessions.
    options["agent_context"] = AgentContext(skills=skills, current_datetime=None)
tools = [
    Tool(name=TerminalTool.name, params={"terminal_type": config["terminal"]}),
    Tool(name=FileEditorTool.name),
    Tool(name=TaskTrackerTool.name),
]
conversation = Conversation(
    agent=Agent(llm=llm, tools=tools, **options), workspace=os.getcwd(), visualizer=None, **config["conversation"]
)
for name, value in before.items():
    os.environ.pop(name) if value is None else os.environ.update({name: value})
failure = None
try:
    conversation.send_message(instruction)
    conversation.run()
except Exception as error:
    failure = error
events = list(conversation.state.events)
status = conversation.state.execution_status
words = [
    event.action.message if isinstance(event, ActionEvent) else "".join(part.text for part in event.llm_message.content)
    for event in events
    if (isinstance(event, ActionEvent) and isinstance(event.action, FinishAction))
    or (isinstance(event, MessageEvent) and event.source == "agent")
]
errors = [event for event in events if isinstance(event, ConversationErrorEvent)]
print(words[-1] if words else "")
reasons = [f"{event.code}: {event.detail}" for event in errors] + ([repr(failure)] if failure else [])
if status != ConversationExecutionStatus.FINISHED:
    reasons.append(f"It ended as {status.value}.")
for reason in reasons:
    print(reason, file=sys.stderr)
conversation.close()
sys.stdout.flush()
sys.stderr.flush()
is_limit = any(event.code == "MaxIterationsReached" for event in errors)
# Threads of OpenHands may still be waiting.
os._exit(0 if status == ConversationExecutionStatus.FINISHED and failure is None else 53 if is_limit else 1)
