"""Prints the recipe's table, row by row."""

import json

assert ids == table["input_ids"][0].as_py()  # noqa: F821
found = []
for row in table.to_pylist():  # noqa: F821
    trained = [i for i, value in enumerate(row["loss_mask"]) if value]
    found.append({"ids": row["input_ids"], "trained": trained, "logprobs": [row["logprobs"][i] for i in trained]})
print(json.dumps(found))
