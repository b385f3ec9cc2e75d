import os
import sys
from pathlib import Path

from minisweagent.agents import get_agent
from minisweagent.config import builtin_config_dir, get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.models import get_model
from minisweagent.utils.serialize import recursive_merge

own = Path(__file__).with_name("mini.yaml")
config = recursive_merge(get_config_from_spec(str(builtin_config_dir / "mini.yaml")), get_config_from_spec(str(own)))
model = get_model(config=config["model"])
environment = get_environment(config.get("environment", {}), default_type="local")
agent = get_agent(model, environment, config["agent"], default_type="default")
result = agent.run(Path(os.environ["POLAR_INSTRUCTION_FILE"]).read_text(encoding="utf-8"))
status = result.get("exit_status", "")
print(result.get("submission") or status)
sys.exit(0 if status == "Submitted" else 53 if "Exceeded" in status else 1)
