"""Reads the dataset with RLHFDataset and runs the recipe's agent loop in verl's own AgentLoopWorker."""

import asyncio
import json
from glob import glob

from omegaconf import OmegaConf
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

PROMPT, RESPONSE = 64, 256
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>")), pad_token="<pad>")
tokenizer.chat_template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}
rollout = {"prompt_length": PROMPT, "response_length": RESPONSE, **sampling}
config = OmegaConf.create({"data": {"filter_overlong_prompts": False}, "actor_rollout_ref": {"rollout": rollout}})

# The constructor loads a model; the loop itself needs only these.
worker = AgentLoopWorker.__new__(AgentLoopWorker)
worker.config = config
worker.rollout_config = config.actor_rollout_ref.rollout
worker.tokenizer = tokenizer
worker.processor = None
worker.hf_model_type = None
worker.llm_client = None
worker.dataset_cls = RLHFDataset
worker.tools = []
worker.mm_processor_kwargs = {}
worker.distillation_enabled = False
worker.reward_loop_worker_handles = None

dataset = RLHFDataset(sorted(glob("verl/*.parquet")), tokenizer, config.data)
batch = DataProto.from_single_dict(collate_fn([dataset[i] for i in range(len(dataset))]))
output = asyncio.run(worker.generate_sequences(batch))

found = []
for i in range(len(output)):
    tensors = output.batch[i]
    real = tensors["attention_mask"].bool()
    start = int(real[:PROMPT].sum())
    mask = tensors["response_mask"].bool()
    found.append(
        {
            "ids": tensors["input_ids"][real].tolist(),
            "trained": [start + int(at) for at in mask.nonzero().flatten()],
            "logprobs": tensors["rollout_log_probs"][mask].tolist(),
            "reward": float(tensors["rm_scores"].sum()),
            "group": output.non_tensor_batch["group_id"][i],
        }
    )
print(json.dumps(found))
