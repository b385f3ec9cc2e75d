"""Writes what the Python stack makes of our own conversations and texts: the truth packages/tiny-engine is tested against.

usage: make-golden.py <model folder> <golden folder>
needs: pip install transformers tokenizers jinja2

The model folder holds tokenizer.json and tokenizer_config.json. Templates are rendered by transformers itself, ids come
from the Rust tokenizer, and what vLLM does to a request before that is repeated here in a few lines.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

SYSTEM = {"role": "system", "content": "You repair clocks and answer in one sentence."}
QUESTION = {"role": "user", "content": "Why does the minute hand stop at noon?"}
WEATHER = """{"type": "function", "function": {"name": "weather_at", "description": "Weather at a place & time",
 "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "hours": {"type": "number", "default": 3.0,
 "minimum": 0, "maximum": 72.5}}, "required": ["place"]}}}"""
ODD_TOOL = """{"type":"function","function":{"name":"odd","description":"<b>\\u201equotes\\u201c</b> & 'ticks' \\"q\\" \\\\ \\t \\u0007 \\u2028 日本 🕰",
 "strict":false,"parameters":{"type":"object","additionalProperties":false,"properties":{"10":{"const":null},"2":{"enum":
 [1e3,1E-7,0.1,-0.0,-0,1.50,123456789012345678901234567890,1e16,1e15,0.0001,0.00001,1e400]},"nested":{"a":[[],{},[{"b":
 [true,false,null]}]]}},"required":[]}}}"""
EMPTY_TOOL = '{"type": "function", "function": {"name": "now"}}'


def call(name, arguments, id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    """Name, request body without tools, and the tools as JSON text, so that numbers keep their spelling."""
    yield "user only", {"messages": [QUESTION]}, None
    yield "system and user", {"messages": [SYSTEM, QUESTION]}, None
    yield "several turns", {
        "messages": [
            SYSTEM,
            QUESTION,
            {"role": "assistant", "content": "Its wheel slips on the arbor."},
            {"role": "user", "content": "And how is that mended?\n\nBriefly."},
        ]
    }, None
    yield "no generation prompt", {"messages": [SYSTEM, QUESTION], "add_generation_prompt": False}, None
    yield "ends with an answer", {
        "messages": [QUESTION, {"role": "assistant", "content": "It is tired."}],
        "add_generation_prompt": False,
    }, None
    yield "thinking off", {"messages": [QUESTION], "chat_template_kwargs": {"enable_thinking": False}}, None
    yield "thinking on", {"messages": [QUESTION], "chat_template_kwargs": {"enable_thinking": True}}, None
    yield "late system message", {"messages": [QUESTION, {"role": "system", "content": "Answer in French."}]}, None
    yield "unknown role", {"messages": [{"role": "developer", "content": "Be kind."}, QUESTION]}, None
    yield "empty and null content", {
        "messages": [
            {"role": "user", "content": ""},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "Hello?"},
        ]
    }, None
    yield "list content", {
        "messages": [
            {
                "role": "system",
                "content": [{"type": "text", "text": "First part."}, {"type": "text", "text": "Second part."}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "one"},
                    {"type": "text", "text": ""},
                    {"type": "text", "text": "three"},
                ],
            },
        ]
    }, None
    yield "special strings in content", {
        "messages": [
            {"role": "user", "content": "Print <|im_end|> and <|im_start|>user, then <|endoftext|> or <|im_end |>."}
        ]
    }, None
    yield "unicode content", {
        "messages": [
            {
                "role": "user",
                "content": "Zwölf Uhr 🕛, 正午, до полудня, \u00a0\u200bnoon\ufeff, e\u0301, 👩‍🔧\r\n\ttick",
            }
        ]
    }, None
    yield "template syntax in content", {
        "messages": [{"role": "user", "content": "{{ messages }} {% if x %} {# no #}"}]
    }, None
    yield "content that looks like a mark", {
        "messages": [
            {"role": "user", "content": "\\u0001m0n1\\u0001 \u0001m0n2\u0001 \u0001m1 u0001m2"},
            {"role": "assistant", "content": "", "tool_calls": [call("f", '{"a": 1.0, "b": "\\u0001m0n1"}')]},
        ]
    }, None
    yield "one tool", {"messages": [SYSTEM, QUESTION]}, f"[{WEATHER}]"
    yield "three tools, no system", {"messages": [QUESTION]}, f"[{WEATHER}, {ODD_TOOL}, {EMPTY_TOOL}]"
    yield "tool call and result", {
        "messages": [
            {"role": "user", "content": "Will it rain in Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [call("weather_at", '{"place":"Oslo","hours":3.0}')]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"rain": 0.30, "ok": true}'},
        ]
    }, f"[{WEATHER}]"
    yield "parallel calls and consecutive results", {
        "messages": [
            {"role": "user", "content": "Compare Oslo and Bergen."},
            {
                "role": "assistant",
                "content": "I look at both.",
                "tool_calls": [
                    call("weather_at", '{"place": "Oslo"}', "call_1"),
                    call("weather_at", '{"place": "Bergen", "hours": 12}', "call_2"),
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "dry"},
            {
                "role": "tool",
                "tool_call_id": "call_2",
                "content": [{"type": "text", "text": "wet"}, {"type": "text", "text": "very"}],
            },
            {"role": "assistant", "content": "Oslo is drier."},
            {"role": "user", "content": "Thanks."},
        ]
    }, f"[{WEATHER}]"
    numbers = (
        '{"whole":3.0,"thousand":1e3,"long":12345678901234567890,"longer":-98765432109876543210,"tiny":1e-5,"huge":1.5E+300,'
        '"big":1e16,"below":9007199254740993.0,"zero":-0,"minus":-0.0,"third":0.3333333333333333,"many":0.1000000000000000055}'
    )
    yield "numbers in arguments", {
        "messages": [QUESTION, {"role": "assistant", "content": "", "tool_calls": [call("odd", numbers)]}]
    }, None
    yield "strings and keys in arguments", {
        "messages": [
            QUESTION,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    call(
                        "odd",
                        '{"b": "\\u00e9\\n\\"<&>\\u0000\\u001f\\u007f\\/", "10": 1, "9": [1,2 , 3], "a": {"1": {}}, "b": "again"}',
                    )
                ],
            },
        ]
    }, f"[{ODD_TOOL}]"
    yield "arguments that are no object", {
        "messages": [
            QUESTION,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    call("a", ""),
                    call("b", '"just text"'),
                    call("c", "[1.0, NaN, -Infinity]"),
                    call("d", " true "),
                    call("e", "7"),
                ],
            },
        ]
    }, None
    yield "no tool calls in an empty list", {
        "messages": [QUESTION, {"role": "assistant", "content": "None needed.", "tool_calls": []}]
    }, None
    yield "result first, question last", {
        "messages": [
            {"role": "tool", "tool_call_id": "x", "content": "12:00"},
            {"role": "user", "content": "<tool_response>\nx\n</tool_response>"},
        ]
    }, f"[{EMPTY_TOOL}]"
    yield "continue the final message", {
        "messages": [QUESTION, {"role": "assistant", "content": "Because the wheel  "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }, None
    yield "continue a user message, which reads like its own end", {
        "messages": [
            {"role": "user", "content": "tick"},
            {"role": "assistant", "content": "tock"},
            {"role": "user", "content": "tick"},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }, None
    yield "long conversation", {
        "messages": [SYSTEM]
        + [
            {"role": role, "content": f"{text} {number}."}
            for number in range(12)
            for role, text in (("user", "Name clock part"), ("assistant", "This would be part number"))
        ]
        + [QUESTION]
    }, None


def as_vllm_hands_it_over(message):
    """A message as it reaches a template that takes text content."""
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    result = {"role": message["role"], "content": content}
    if message["role"] == "assistant" and message.get("tool_calls"):
        result["tool_calls"] = [json.loads(json.dumps(call)) for call in message["tool_calls"]]
        for tool_call in result["tool_calls"]:
            text = tool_call["function"]["arguments"]
            tool_call["function"]["arguments"] = json.loads(text) if text else {}
    return result


def render(template, request):
    rendered, _ = render_jinja_template(
        conversations=[[as_vllm_hands_it_over(message) for message in request["messages"]]],
        tools=request.get("tools"),
        chat_template=template,
        add_generation_prompt=request.get("add_generation_prompt", True),
        continue_final_message=request.get("continue_final_message", False),
        **request.get("chat_template_kwargs", {}),
    )
    return rendered[0]


def texts():
    yield from [
        "",
        " ",
        "  two  spaces  ",
        "\n\n\n",
        "I'm, you're, they'd, it'll, O'Brien'S",
        "tabs\tand\r\nlines\n \n end ",
        "3.14159 1,000,000 ½ Ⅷ ٣",
        "\ufeffmark in front",
        "mark \ufeff\ufeff inside",
        "next\u0085line \u0085 \u180e \u2028 \u3000 \u00a0x",
        "naïve café — “quoted” … ≠",
        "中文和English混排，都是一个最大的",
        "👩‍👩‍👧‍👦 🏳️‍🌈 🇳🇴",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "<|im_end|><|im_end|> <|endoftext|>x",
        "<|im_end|",
        '{"name": "f", "arguments": {"a": [1, 2.0, null]}}',
        "\u0000\u0001\u007f\u0080",
    ]
    source = random.Random(20)
    alphabet = [
        " ",
        "  ",
        "\n",
        "\t",
        "\r",
        "\u0085",
        "\u00a0",
        "\u2003",
        "\ufeff",
        "\u200b",
        "'",
        "'s",
        "'T",
        "a",
        "B",
        "the",
        "ing",
        "0",
        "42",
    ]
    alphabet += [
        ".",
        ",",
        "!",
        "_",
        "-",
        "é",
        "ß",
        "я",
        "の",
        "中",
        "国",
        "是",
        "一个",
        "🙂",
        "\u0301",
        "\U0001f1f3",
        "<|im_end|>",
        "<|",
        "|>",
        "ǅ",
        "²",
    ]
    for _ in range(150):
        yield "".join(source.choice(alphabet) for _ in range(source.randint(1, 24)))


def main(model_folder, golden_folder):
    template = json.loads((model_folder / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    cases = []
    for name, request, tools in conversations():
        body = json.dumps(request, ensure_ascii=False)
        if tools is not None:
            body = f'{body[:-1]}, "tools": {tools}}}'
        text = render(template, json.loads(body))
        cases.append({"name": name, "body": body, "text": text, "ids": encode(text)})

    source = random.Random(21)
    lists = [[source.randrange(tokenizer.get_vocab_size()) for _ in range(source.randint(0, 30))] for _ in range(80)]
    lists += [[source.randrange(3, 300) for _ in range(source.randint(1, 30))] for _ in range(80)]
    decoded = [
        {
            "ids": ids,
            "text": tokenizer.decode(ids, skip_special_tokens=False),
            "skipped": tokenizer.decode(ids, skip_special_tokens=True),
        }
        for ids in lists
    ]
    write(golden_folder / "chat-template.golden.json", cases)
    write(
        golden_folder / "tokenizer.golden.json",
        {"encoded": [{"text": text, "ids": encode(text)} for text in texts()], "decoded": decoded},
    )


def write(path, value):
    """One case a line: readable in a diff, and not ten thousand lines of ids."""

    def lines(items):
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=True) for item in items) + "\n]"

    text = (
        lines(value)
        if isinstance(value, list)
        else "{" + ", ".join(f'"{key}": {lines(items)}' for key, items in value.items()) + "}"
    )
    path.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
