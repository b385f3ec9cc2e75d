"""An HTTP server with vLLM's chat API over the engine in this folder.

    python serve.py --model FOLDER --port 8000

It has the endpoints that a gateway needs for exact capture (token ids, log probabilities, token-in chat, /tokenize), and three
for a trainer: POST /update_weights {"path", "version"} replaces the weights between two tokens, POST /expert {"plans"} lets a
scripted expert answer until {"plans": null}, GET /stats counts work.
"""

import argparse
import asyncio
import json
import random
import re
import time
import uuid
from pathlib import Path

import torch
from transformers import AutoTokenizer

from engine import Engine, Request
from expert import Expert
from model import Shape, load_weights
from tasks import Step

STREAM_SECONDS = 0.03
TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class BadRequest(Exception):
    pass


class Server:
    def __init__(self, folder: Path, name: str, slots: int, length: int, device: str):
        self.name, self.started = name, int(time.time())
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        shape = Shape.load(folder)
        self.length = min(length, shape.context)
        self.device = device
        self.engine = Engine(load_weights(folder, shape, device), shape, slots, self.length, device)
        self.version = "0"
        self.expert: Expert | None = None
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.eos = frozenset(i for i in [self.end, self.tokenizer.convert_tokens_to_ids("<|endoftext|>")] if i is not None)

    # ---- endpoints

    async def handle(self, method: str, path: str, body: dict, reply: "Reply") -> None:
        match method, path:
            case "GET", "/health":
                await reply.json({})
            case "GET", "/version":
                await reply.json({"version": "0.27.1"})
            case "GET", "/v1/models":
                model = {"id": self.name, "object": "model", "created": self.started, "owned_by": "polar"}
                await reply.json({"object": "list", "data": [{**model, "max_model_len": self.engine.context}]})
            case "GET", "/stats":
                e = self.engine
                await reply.json(
                    {
                        "running": e.running,
                        "waiting": e.waiting.qsize(),
                        "prompt_tokens": e.prompt_tokens,
                        "shared_tokens": e.shared_tokens,
                        "sampled_tokens": e.sampled_tokens,
                        "steps": e.steps,
                        "busy_seconds": e.busy_seconds,
                        "version": self.version,
                    }
                )
            case "POST", "/tokenize":
                ids = self.prompt_ids(body) if "messages" in body else self.tokenizer.encode(body["prompt"])
                await reply.json({"count": len(ids), "max_model_len": self.engine.context, "tokens": ids})
            case "POST", "/detokenize":
                await reply.json({"prompt": self.tokenizer.decode(body["tokens"])})
            case "POST", "/v1/chat/completions":
                await self.chat(body, reply)
            case "POST", "/expert":
                plans = body["plans"]
                read = lambda steps: [Step(verb, tuple(arguments)) for verb, arguments in steps]
                self.expert = plans and Expert({task: read(steps) for task, steps in plans.items()})
                await reply.json({"plans": len(plans or {})})
            case "POST", "/update_weights":
                await asyncio.to_thread(self.update_weights, Path(body["path"]), str(body["version"]))
                await reply.json({"version": self.version})
            case _:
                await reply.error(404, "Not Found")

    def update_weights(self, path: Path, version: str) -> None:
        from safetensors.torch import load_file

        self.engine.replace_weights(load_file(path, device=self.device))
        self.version = version

    def prompt_ids(self, body: dict) -> list[int]:
        messages = [self.plain_message(m) for m in body["messages"]]
        encoded = self.tokenizer.apply_chat_template(
            messages,
            tools=body.get("tools") or None,
            add_generation_prompt=body.get("add_generation_prompt", True),
            tokenize=False,
            **(body.get("chat_template_kwargs") or {}),
        )
        return self.tokenizer.encode(encoded, add_special_tokens=False)

    @staticmethod
    def plain_message(message: dict) -> dict:
        message = dict(message)
        if isinstance(message.get("content"), list):
            message["content"] = "".join(part.get("text", "") for part in message["content"])
        calls = []
        for call in message.get("tool_calls") or []:
            function = dict(call["function"])
            try:
                function["arguments"] = json.loads(function["arguments"])
            except (ValueError, TypeError):
                pass
            calls.append({**call, "function": function})
        if calls:
            message["tool_calls"] = calls
        return message

    async def chat(self, body: dict, reply: "Reply") -> None:
        if body.get("model") not in (None, self.name):
            return await reply.error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
        if body.get("n", 1) != 1:
            raise BadRequest("n must be 1")
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        prompt = list(given) if given else self.prompt_ids(body)
        room = self.engine.context - len(prompt)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or room
        if room < 1 or (limit > room and (body.get("max_completion_tokens") or body.get("max_tokens"))):
            limit = min(limit, room)
            if room < 1:
                raise BadRequest(
                    f"This model's maximum context length is {self.engine.context} tokens. However, your request has "
                    f"{len(prompt)} input tokens. Please reduce the length of the input messages."
                )
        stops = body.get("stop") or []
        answer = Answer(self, body, prompt, [stops] if isinstance(stops, str) else stops)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        if self.expert is not None:
            # The expert is deterministic: each of its tokens has probability 1.
            text = self.expert.answer(body["messages"], body.get("tools") or [])
            answer.ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.end]
            answer.logprobs = [0.0] * len(answer.ids)
            ended.set_result("stop")
            return await self.send(answer, ended, body, reply)
        seed = body.get("seed")
        request = Request(
            prompt=prompt,
            max_tokens=limit,
            temperature=float(1.0 if body.get("temperature") is None else body["temperature"]),
            top_p=float(1.0 if body.get("top_p") is None else body["top_p"]),
            stop_ids=self.eos,
            seed=random.getrandbits(48) if seed is None else seed,
            on_token=answer.take,
            on_end=lambda reason: loop.call_soon_threadsafe(lambda: ended.done() or ended.set_result(reason)),
        )
        self.engine.submit(request)
        try:
            await self.send(answer, ended, body, reply)
        finally:
            request.is_aborted = True

    async def send(self, answer: "Answer", ended: "asyncio.Future[str]", body: dict, reply: "Reply") -> None:
        if not body.get("stream"):
            while not ended.done() and not reply.is_gone:
                await asyncio.wait([ended], timeout=STREAM_SECONDS)
            return None if reply.is_gone else await reply.json(answer.whole(ended.result()))
        await reply.start_events()
        await reply.event(answer.first_chunk())
        while not ended.done():
            await asyncio.wait([ended], timeout=STREAM_SECONDS)
            if reply.is_gone:
                return None
            for chunk in answer.chunks(None):
                await reply.event(chunk)
        for chunk in answer.chunks(ended.result()):
            await reply.event(chunk)
        await reply.end_events()


class Answer:
    """What one request sampled, as a whole answer or as chunks."""

    def __init__(self, server: Server, body: dict, prompt: list[int], stops: list[str]):
        self.server, self.body, self.prompt, self.stops = server, body, prompt, stops
        self.id, self.created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.sent_ids = 0
        self.sent_text = 0
        self.stopped: str | None = None
        self.has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"

    def take(self, token: int, logprob: float) -> bool:
        """Called from the engine's thread. True where a stop string is complete."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self.stops:
            tail = self.server.tokenizer.decode(self.ids[-64:])
            self.stopped = next((stop for stop in self.stops if stop in tail), None)
        return self.stopped is not None

    def text(self, count: int) -> str:
        kept = [i for i in self.ids[:count] if i not in self.server.eos]
        text = self.server.tokenizer.decode(kept)
        return text[: text.index(self.stopped)] if self.stopped and self.stopped in text else text

    def parse(self, text: str) -> tuple[str | None, list[dict]]:
        """Splits the text into content and tool calls, as vLLM's `hermes` parser does."""
        if not self.has_tools or "<tool_call>" not in text:
            return text, []
        calls = []
        for found in TOOL_CALL.finditer(text):
            try:
                call = json.loads(found[1])
                arguments = call.get("arguments", {})
                name = call["name"]
            except (ValueError, KeyError, AttributeError):
                return text, []
            arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            function = {"name": name, "arguments": arguments}
            calls.append({"id": f"call_{uuid.uuid4().hex[:16]}", "type": "function", "function": function})
        if not calls:
            return text, []
        return text[: text.index("<tool_call>")].strip() or None, calls

    def logprob_fields(self, start: int, end: int) -> dict | None:
        if not self.body.get("logprobs"):
            return None
        rows = zip(self.ids[start:end], self.logprobs[start:end])
        decode = self.server.tokenizer.decode
        return {"content": [{"token": decode([i]), "logprob": p, "bytes": None, "top_logprobs": []} for i, p in rows]}

    def usage(self) -> dict:
        counts = {"prompt_tokens": len(self.prompt), "completion_tokens": len(self.ids)}
        return {**counts, "total_tokens": len(self.prompt) + len(self.ids)}

    def head(self, kind: str) -> dict:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.server.name}

    def whole(self, reason: str) -> dict:
        content, calls = self.parse(self.text(len(self.ids)))
        message = {"role": "assistant", "content": content, "tool_calls": calls}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self.logprob_fields(0, len(self.ids)),
            "finish_reason": "tool_calls" if calls and reason == "stop" else reason,
            "stop_reason": self.stopped,
            "token_ids": self.ids,
        }
        return {
            **self.head("chat.completion"),
            "choices": [choice],
            "usage": self.usage(),
            "prompt_token_ids": self.prompt,
        }

    def chunk(self, delta: dict, start: int, end: int, reason: str | None) -> dict:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": self.logprob_fields(start, end),
            "finish_reason": reason,
            "token_ids": self.ids[start:end],
        }
        return {**self.head("chat.completion.chunk"), "choices": [choice]}

    def first_chunk(self) -> dict:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return {**self.head("chat.completion.chunk"), "choices": [choice], "prompt_token_ids": self.prompt}

    def chunks(self, end: str | None) -> list[dict]:
        """What came since the last call. `end` is the reason after which nothing more comes."""
        count, start = len(self.ids), self.sent_ids
        if end is None and count == start:
            return []
        text = self.text(count)
        # A character may be cut between two tokens, and text from a tool call's beginning is parsed at the end.
        safe = len(text) if end is not None else len(text.rstrip("\ufffd"))
        if self.has_tools:
            at = text.find("<")
            safe = min(safe, at if at >= 0 else safe)
        self.sent_ids = count
        if end is None:
            delta = {"content": text[self.sent_text : safe]} if safe > self.sent_text else {}
            self.sent_text = max(self.sent_text, safe)
            return [self.chunk(delta, start, count, None)]
        content, calls = self.parse(text)
        rest = (content or "")[self.sent_text :]
        delta: dict = {"content": rest} if rest else {}
        if calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        reason = "tool_calls" if calls and end == "stop" else end
        last = {**self.head("chat.completion.chunk"), "choices": [], "usage": self.usage()}
        wants_usage = (self.body.get("stream_options") or {}).get("include_usage")
        return [self.chunk(delta, start, count, reason), *([last] if wants_usage else [])]


class Reply:
    """One HTTP/1.1 answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer

    @property
    def is_gone(self) -> bool:
        """Whether the client closed the connection."""
        return self.reader.at_eof() or self.writer.is_closing()

    async def json(self, body: dict, status: int = 200) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def error(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        await self.json({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)

    async def start_events(self) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        self.writer.write(head.encode())

    async def event(self, body: dict) -> None:
        await self._part(b"data: " + json.dumps(body).encode() + b"\n\n")

    async def end_events(self) -> None:
        await self._part(b"data: [DONE]\n\n")
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def _part(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()


async def serve_connection(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ", 2)
            fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            data = await reader.readexactly(int(fields.get("content-length", "0")))
            reply = Reply(reader, writer)
            await answer(server, method, target.partition("?")[0], data, reply)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def answer(server: Server, method: str, path: str, data: bytes, reply: Reply) -> None:
    try:
        await server.handle(method, path, json.loads(data) if data else {}, reply)
    except (BadRequest, KeyError, TypeError, ValueError) as cause:
        await reply.error(400, f"{type(cause).__name__}: {cause}" if not isinstance(cause, BadRequest) else str(cause))


async def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("--model", type=Path, required=True)
    args.add_argument("--name", default="policy")
    args.add_argument("--port", type=int, default=8000)
    args.add_argument("--slots", type=int, default=64)
    args.add_argument("--length", type=int, default=8192)
    args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = args.parse_args()
    # Rounded matrix products would make the log probabilities of sampling and of training differ.
    torch.backends.cuda.matmul.allow_tf32 = False
    server = Server(given.model, given.name, given.slots, given.length, given.device)
    http = await asyncio.start_server(
        lambda r, w: serve_connection(server, r, w), "127.0.0.1", given.port, limit=64 * 1024 * 1024
    )
    print(f"serving {given.name} on 127.0.0.1:{http.sockets[0].getsockname()[1]}", flush=True)
    async with http:
        await http.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
