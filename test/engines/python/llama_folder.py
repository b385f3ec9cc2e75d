"""Writes the weights of a Llama model as a HuggingFace folder (for vLLM) and as a GGUF file (for llama.cpp)."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def to_gguf_name(name: str) -> str:
    name = name.removesuffix(".weight")
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.weight"
    return f"{GGUF_NAMES[name]}.weight"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores the rotary halves of q and k interleaved; HuggingFace stores one half after the other."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def deinterleave(weight: np.ndarray, heads: int) -> np.ndarray:
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_folder(folder: Path, config: dict, tensors: dict[str, np.ndarray], tokenizer: dict, tokenizer_config: dict):
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    files = {"config": config, "tokenizer": tokenizer, "tokenizer_config": tokenizer_config}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=1))


def write_gguf(file: Path, config: dict, tensors: dict[str, np.ndarray], tokenizer: dict, template: str, pre: str):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    names = {identifier: token for token, identifier in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        names[token["id"]] = token["content"]
    kinds = [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([names[i] for i in range(config["vocab_size"])])
    writer.add_token_types(kinds)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    for name, tensor in tensors.items():
        heads = {"q": "num_attention_heads", "k": "num_key_value_heads"}.get(name.removesuffix("_proj.weight")[-1])
        if heads is not None and name.endswith("_proj.weight") and "self_attn" in name:
            tensor = interleave(tensor, config[heads])
        writer.add_tensor(to_gguf_name(name), np.ascontiguousarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
