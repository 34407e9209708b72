"""Writes a tiny Llama for vLLM: `python tests/real/make_model.py DIR`. Standard library only.

There are no weights: vLLM makes random ones with `--load-format dummy`. One byte of text is one token.
"""

import json
import sys
from pathlib import Path

LAYERS = 6
HIDDEN = 256
HEADS = 4
CONTEXT = 32768
SPECIAL = ("<unk>", "<s>", "</s>")


def letters() -> list[str]:
    """The 256 characters by which byte-level tokenizers write bytes: printable ones stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def files() -> dict[str, object]:
    """The content of each file."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters()])}
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(vocabulary),
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "max_position_embeddings": CONTEXT,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [{"id": number, "content": token, **added} for number, token in enumerate(SPECIAL)],
            "pre_tokenizer": bytewise,
            "decoder": bytewise,
            "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": []},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<unk>",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "model_max_length": CONTEXT,
        },
    }


def write(folder: Path) -> None:
    """Write them; OSError if the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_model.py DIR")
    write(Path(sys.argv[1]))
