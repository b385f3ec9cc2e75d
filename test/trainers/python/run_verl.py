"""Runs the agent loop of examples/verl in verl's own AgentLoopWorker, and prints the rows of the batch as JSON.

Arguments: the folder of the model's tokenizer. POLAR_SERVER_URL and POLAR_TOKEN name the server.
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, _agent_loop_registry
from verl.protocol import DataProto
from verl.utils.dataset.rl_dataset import RLHFDataset

EXAMPLE = Path(__file__).parents[3] / "examples/verl"
PROMPT, RESPONSE = 256, 64
sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}
rollout = {"prompt_length": PROMPT, "response_length": RESPONSE, "agent": {"default_agent_loop": "polar"}, **sampling}
config = OmegaConf.create({"data": {}, "actor_rollout_ref": {"rollout": rollout}})

# The constructor loads a model; the loop itself needs only these.
worker = AgentLoopWorker.__new__(AgentLoopWorker)
worker.config = config
worker.rollout_config = config.actor_rollout_ref.rollout
worker.tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
worker.processor = None
worker.hf_model_type = None
worker.llm_client = None
worker.dataset_cls = RLHFDataset
worker.tools = []
worker.mm_processor_kwargs = {}
worker.distillation_enabled = False
worker.reward_loop_worker_handles = None
for loop in OmegaConf.load(EXAMPLE / "agent_loop.yaml"):
    _agent_loop_registry[loop.name] = loop

# verl repeats each prompt for the samples of its group.
prompts = ["Who are you?", "Who are you?", "What can you do?", "What can you do?"]
raw = np.empty(len(prompts), dtype=object)
raw[:] = [[{"role": "user", "content": prompt}] for prompt in prompts]
batch = DataProto.from_single_dict({"raw_prompt": raw, "uid": np.array(prompts, dtype=object)})
output = asyncio.run(worker.generate_sequences(batch))

rows = []
for i in range(len(output)):
    tensors = output.batch[i]
    real = tensors["attention_mask"].bool()
    rows.append(
        {
            "session_id": output.non_tensor_batch["polar_session_id"][i],
            "uid": prompts[i],
            "prompt_ids": tensors["prompts"][real[:PROMPT]].tolist(),
            "response_ids": tensors["responses"][real[PROMPT:]].tolist(),
            "mask": tensors["response_mask"][real[PROMPT:]].tolist(),
            "logprobs": tensors["rollout_log_probs"][real[PROMPT:]].tolist(),
            "reward": float(tensors["rm_scores"].sum()),
        }
    )
print(json.dumps(rows))
