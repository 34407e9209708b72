"""What the OpenAI-compatible paths of the simulated server take and give: pure translation, no sockets."""

import json
import time
from dataclasses import dataclass
from typing import Any

from demo.engine import Request

DEFAULT_MAX_TOKENS = 16  # of /v1/completions, as the protocol says
CHAT_STOPS_AFTER = 32  # a chat without max_tokens ends by itself here


class Rejected(Exception):
    """A call that is answered with `status` and a JSON error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def body(self) -> bytes:
        """The error in vLLM's shape."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        return as_json({"error": {"message": str(self), "type": kind, "param": None, "code": self.status}})


@dataclass(frozen=True)
class Served:
    """The model a server serves."""

    model: str
    max_model_len: int

    def listing(self, created_at: float) -> bytes:
        """The body of `/v1/models`."""
        card = {"id": self.model, "object": "model", "created": int(created_at), "owned_by": "vllm"}
        card |= {"root": self.model, "parent": None, "max_model_len": self.max_model_len}
        return as_json({"object": "list", "data": [card]})


def as_json(value: Any) -> bytes:
    """Compact JSON, as the real server writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def parse(body: bytes, served: Served, *, chat: bool) -> Request:
    """The request in a body of `/v1/completions` or `/v1/chat/completions`; a prompt costs one token per word.

    Raises Rejected: 400 for what cannot be understood or is too long, 404 for another model.
    """
    try:
        call = json.loads(body)
    except ValueError as error:
        raise Rejected(400, "The body is not JSON.") from error
    if not isinstance(call, dict):
        raise Rejected(400, "The body is not a JSON object.")
    if call.get("model", served.model) != served.model:
        raise Rejected(404, f"The model `{call['model']}` does not exist.")
    prompt_tokens = max(1, _words(call.get("messages") if chat else call.get("prompt")))
    room = served.max_model_len - prompt_tokens
    max_tokens = call.get("max_tokens", call.get("max_completion_tokens"))
    stops_itself = chat and max_tokens is None
    if max_tokens is None:
        max_tokens = CHAT_STOPS_AFTER if chat else DEFAULT_MAX_TOKENS
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise Rejected(400, f"max_tokens must be at least 1, got {max_tokens}.")
    if max_tokens > room:
        raise Rejected(400, f"This model's maximum context length is {served.max_model_len} tokens.")
    streams = bool(call.get("stream", False))
    return Request(prompt_tokens, max_tokens, ends_with="stop" if stops_itself else "length", streams=streams)


def _words(prompt: object) -> int:
    if isinstance(prompt, str):
        return len(prompt.split())
    if isinstance(prompt, list):
        return sum(1 if isinstance(part, int) else _words(part) for part in prompt)
    if isinstance(prompt, dict):
        return _words(prompt.get("content", prompt.get("text")))
    raise Rejected(400, "The prompt is missing or of an unknown shape.")


def answer(request: Request, served: Served, reason: str, *, chat: bool) -> bytes:
    """The body of a whole answer that ended for `reason`."""
    text = " word" * request.generated
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": request.prompt_tokens, "completion_tokens": request.generated}
    usage["total_tokens"] = request.prompt_tokens + request.generated
    kind = "chat.completion" if chat else "text_completion"
    return as_json({**_envelope(served, kind), "choices": [choice], "usage": usage})


def event(served: Served, output: str, *, chat: bool) -> bytes:
    """One server-sent event: a token ("") or the end of a stream (the reason)."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": output or None, "logprobs": None}
    text = "" if output else " word"
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    kind = "chat.completion.chunk" if chat else "text_completion"
    return b"data: " + as_json({**_envelope(served, kind), "choices": [choice]}) + b"\n\n"


def _envelope(served: Served, kind: str) -> dict[str, Any]:
    now = time.time()
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {"id": f"{prefix}-{int(now * 1e6):x}", "object": kind, "created": int(now), "model": served.model}
