"""One conversation with tools by each vendor's Python SDK, streamed and whole; prints the parsed answers as JSON."""

import json
import os
import sys

import anthropic
import openai
from google import genai
from google.genai import types

BASE = os.environ["POLAR_BASE_URL"]
KEY = os.environ["POLAR_API_KEY"]
PROMPT = "SCRIPT:go please"
NAMES = ["bash", "read"]
SCHEMA = {"type": "object", "properties": {}}


def openai_chat(stream):
    client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0)
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    body = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "tools": tools}
    if not stream:
        message = client.chat.completions.create(**body).choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
        return message.content, [(name, json.loads(arguments)) for name, arguments in calls]
    text, calls = "", {}
    for chunk in client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    return text, [(name, json.loads(arguments)) for name, arguments in calls.values()]


def openai_responses(stream):
    client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0)
    tools = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in NAMES]
    body = {"model": "tiny", "input": PROMPT, "tools": tools}
    if stream:
        with client.responses.stream(**body) as events:
            for _ in events:
                pass
            response = events.get_final_response()
    else:
        response = client.responses.create(**body)
    calls = [item for item in response.output if item.type == "function_call"]
    return response.output_text, [(call.name, json.loads(call.arguments)) for call in calls]


def anthropic_messages(stream):
    client = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
    tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    body = {"model": "tiny", "max_tokens": 500, "messages": [{"role": "user", "content": PROMPT}], "tools": tools}
    if stream:
        with client.messages.stream(**body) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**body)
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, [(block.name, block.input) for block in message.content if block.type == "tool_use"]


def google_generate(stream):
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=BASE))
    declarations = [types.FunctionDeclaration(name=name, parameters_json_schema=SCHEMA) for name in NAMES]
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=declarations)],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    request = {"model": "tiny", "contents": PROMPT, "config": config}
    models = client.models
    chunks = list(models.generate_content_stream(**request)) if stream else [models.generate_content(**request)]
    parts = [part for chunk in chunks for part in (chunk.candidates[0].content.parts if chunk.candidates and chunk.candidates[0].content else None) or []]
    text = "".join(part.text or "" for part in parts if not part.thought)
    return text, [(part.function_call.name, part.function_call.args) for part in parts if part.function_call]


answers = {}
for ask in [openai_chat, openai_responses, anthropic_messages, google_generate]:
    for stream in [True, False]:
        text, calls = ask(stream)
        kind = "streamed" if stream else "whole"
        answers[f"{ask.__name__} {kind}"] = {"text": text, "calls": [{"name": n, "arguments": a} for n, a in calls]}
json.dump(answers, sys.stdout)
