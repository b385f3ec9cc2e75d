"""Reads an export like its consumers, and prints the result as JSON."""

import json
import sys

import pyarrow.dataset as ds
import pyarrow.parquet as pq

parquet, verl = sys.argv[1:]

table = pq.read_table(parquet)
types = {field.name: str(field.type) for field in table.schema}
samples = [
    {
        "sample_id": row["sample_id"],
        "input_ids": row["input_ids"],
        "loss_mask": row["loss_mask"],
        "logprobs": [None if value != value else value for value in row["logprobs"]],
        "reward": row["reward"],
        "calls": [call["turn_id"] for call in row["calls"]],
        "messages": json.loads(row["prompt_messages"]) + json.loads(row["response_messages"]),
    }
    for row in table.to_pylist()
]
rollouts = [
    {
        "ids": row["prompt_ids"] + row["response_ids"],
        "mask": [0] * len(row["prompt_ids"]) + row["response_mask"],
        "reward": row["reward_score"],
        "prompt": row["prompt"],
    }
    for row in ds.dataset(verl).to_table().to_pylist()
]
json.dump({"types": types, "samples": samples, "rollouts": rollouts}, sys.stdout)
