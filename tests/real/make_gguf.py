"""Writes a tiny random Llama for llama-server: `python tests/real/make_gguf.py FILE`. Standard library only.

The file format is GGUF 3: a header, metadata, a table of tensors, and their data, each at a multiple of 32 bytes.
Matrices are Q8_0, blocks of 32 signed bytes under one scale, so that random bytes are random weights.
"""

import random
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LAYERS = 4
HIDDEN = 512
FEED_FORWARD = 1024
HEADS = 8
CONTEXT = 32768
VOCABULARY = 320
F32, Q8_0 = 0, 8
BLOCK = 32
ALIGNMENT = 32
SCALE = 0.0004  # of bytes in -128..127: weights with a deviation of 0.03
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def tokens() -> list[tuple[str, float, int]]:
    """Text, score and kind of each token: three special ones, the 256 bytes, and letters, of which each is a token."""
    special = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    plain = [chr(code) for code in range(0x21, 0x7F)]
    known = [*special, *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)), ("\u2581", -1.0, NORMAL)]
    known += [(letter, -2.0 - number, NORMAL) for number, letter in enumerate(plain)]
    return known[:VOCABULARY]


def string(text: str) -> bytes:
    """A string with its length in front."""
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(content: object) -> bytes:
    """A value of the metadata, with its type in front; whole numbers are unsigned, but signed in a list."""
    match content:
        case int():
            return struct.pack("<II", 4, content)
        case float():
            return struct.pack("<If", 6, content)
        case str():
            return struct.pack("<I", 8) + string(content)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(content)}i", 9, 5, len(content), *content)
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(content)}f", 9, 6, len(content), *content)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(content)) + b"".join(string(str(text)) for text in content)
    raise TypeError(type(content).__name__)


def metadata() -> dict[str, object]:
    """What llama.cpp must know of a Llama and its tokenizer."""
    words, scores, kinds = zip(*tokens(), strict=True)
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.vocab_size": len(words),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(words),
        "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": list(kinds),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def tensors() -> Iterator[tuple[str, Sequence[int]]]:
    """Name and shape of each tensor, the length of its rows first."""
    yield "token_embd.weight", (HIDDEN, VOCABULARY)
    yield "output_norm.weight", (HIDDEN,)
    yield "output.weight", (HIDDEN, VOCABULARY)
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (HIDDEN,)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{part}.weight", (HIDDEN, HIDDEN)
        yield f"blk.{layer}.ffn_norm.weight", (HIDDEN,)
        yield f"blk.{layer}.ffn_gate.weight", (HIDDEN, FEED_FORWARD)
        yield f"blk.{layer}.ffn_up.weight", (HIDDEN, FEED_FORWARD)
        yield f"blk.{layer}.ffn_down.weight", (FEED_FORWARD, HIDDEN)


def data(shape: Sequence[int], source: random.Random) -> bytes:
    """A norm's ones, or random blocks."""
    if len(shape) == 1:
        return struct.pack("<f", 1.0) * shape[0]
    scale = struct.pack("<e", SCALE)
    blocks = shape[0] * shape[1] // BLOCK
    return b"".join(scale + source.randbytes(BLOCK) for _ in range(blocks))


def padded(content: bytes) -> bytes:
    """The same, up to the next multiple of the alignment."""
    return content + bytes(-len(content) % ALIGNMENT)


def model() -> bytes:
    """The content of the file; always the same."""
    source = random.Random(0)
    pairs, table = metadata(), list(tensors())
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(table), len(pairs))
    head += b"".join(string(key) + value(what) for key, what in pairs.items())
    weights = bytearray()
    for name, shape in table:
        kind = F32 if len(shape) == 1 else Q8_0
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(weights))
        weights += padded(data(shape, source))
    return padded(head) + bytes(weights)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_gguf.py FILE")
    Path(sys.argv[1]).write_bytes(model())
