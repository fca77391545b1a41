"""The official clients over a real socket; they validate every payload against their own models."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

TEXT = "Let me see.</think>Hello Zürich 😀"
CALL = (
    "check</think>Sure.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>status</tool_call>"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "status"}},
]
ASK = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def served(live):
    app, url = live()
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True
    ) as client:
        yield app, client


@pytest.fixture
def claude(live):
    app, url = live()
    with anthropic.Anthropic(
        base_url=url, api_key="unused", max_retries=0, _strict_response_validation=True
    ) as client:
        yield app, client


def test_openai_chat(served):
    app, client = served
    app.say(TEXT)
    answer = client.chat.completions.create(model="m", messages=ASK)
    (choice,) = answer.choices
    assert choice.message.content == "Hello Zürich 😀"
    assert choice.message.reasoning_content == "Let me see."
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert answer._request_id
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_openai_chat_stream(served):
    app, client = served
    app.say(CALL, size=4)
    with client.chat.completions.stream(
        model="m", messages=ASK, tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.done", "content.done"} <= kinds
    (choice,) = final.choices
    assert choice.message.content == "Sure."
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
    assert calls == [("get_weather", {"city": "Oslo", "days": 3}), ("status", {})]
    assert choice.finish_reason == "tool_calls"
    assert final.usage.total_tokens > 0


def test_openai_tool_loop(served):
    app, client = served
    app.say(CALL)
    first = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": call.function.name}
        for call in reversed(first.tool_calls)
    ]
    app.say("</think>done")
    second = client.chat.completions.create(
        model="m", messages=[*ASK, first, *results], tools=TOOLS
    )
    assert second.choices[0].message.content == "done"
    prompt = app.tokenizer.decode(app.last.prompt_ids)
    assert "<think>check</think>Sure.<tool_call>get_weather<arg_key>city</arg_key>" in prompt
    assert (
        "<tool_response>get_weather</tool_response><tool_response>status</tool_response>" in prompt
    )


def test_openai_completions_and_models(served):
    app, client = served
    app.say("a b c")
    assert client.completions.create(model="m", prompt="x").choices[0].text == "a b c"
    # The client's model of a chunk has no null finish_reason, which OpenAI itself sends.
    texts = ["", ""]
    with openai.OpenAI(base_url=client.base_url, api_key="unused") as lenient:
        for chunk in lenient.completions.create(model="m", prompt=["x", "y"], stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["a b c", "a b c"]
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


def test_openai_errors(served):
    app, client = served
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="m", messages=[])
    assert bad.value.param == "messages"
    from glm53_server.engine.base import EngineError

    app.say("</think>abc", error=EngineError("lost"))
    with pytest.raises(openai.APIError, match="lost"):
        list(client.chat.completions.create(model="m", messages=ASK, stream=True))


def test_openai_responses(served):
    app, client = served
    app.say(CALL)
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    for tool in tools:
        tool.setdefault("parameters", {})
        tool["strict"] = False
    asked = {
        "model": "m",
        "input": "Hi",
        "instructions": "Be brief.",
        "tools": [*tools, {"type": "web_search"}],
    }
    answer = client.responses.create(**asked)
    assert answer.status == "completed"
    assert [item.type for item in answer.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert answer.output_text == "Sure."
    assert json.loads(answer.output[2].arguments) == {"city": "Oslo", "days": 3}
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == [item.type for item in answer.output]
    assert final.output_text == answer.output_text
    assert final.usage == answer.usage
    app.say("</think>ok")
    items = [{"role": "user", "content": "Hi"}, *(item.to_dict() for item in answer.output)]
    items += [
        {"type": "function_call_output", "call_id": item.call_id, "output": "fine"}
        for item in answer.output
        if item.type == "function_call"
    ]
    assert client.responses.create(model="m", input=items).output_text == "ok"
    prompt = app.tokenizer.decode(app.last.prompt_ids)
    assert "<think>check</think>Sure.<tool_call>get_weather" in prompt
    assert prompt.count("<tool_response>fine</tool_response>") == 2
    for field in ("previous_response_id", "conversation"):
        with pytest.raises(openai.BadRequestError, match=field):
            client.responses.create(model="m", input="x", **{field: "x_1"})


def test_openai_responses_cut_by_length(served):
    app, client = served
    app.say("</think>one two three four")
    answer = client.responses.create(model="m", input="x", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="m", input="x", max_output_tokens=3) as stream:
        assert list(stream)[-1].type == "response.incomplete"


def test_anthropic_message_and_stream_agree(claude):
    app, client = claude
    app.say(CALL, size=3)
    tools = [
        {"name": "get_weather", "input_schema": PARAMETERS},
        {"name": "status", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    asked = {
        "model": "m",
        "max_tokens": 500,
        "messages": ASK,
        "tools": tools,
        "system": "Be brief.",
    }
    answer = client.messages.create(**asked)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[0].thinking == "check"
    assert answer.content[2].input == {"city": "Oslo", "days": 3}
    assert answer.content[3].input == {}
    assert answer.stop_reason == "tool_use"
    assert answer.usage.input_tokens > 0
    with client.messages.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    for streamed, whole in zip(final.content, answer.content, strict=True):
        assert streamed.type == whole.type
        assert getattr(streamed, "text", None) == getattr(whole, "text", None)
        assert getattr(streamed, "input", None) == getattr(whole, "input", None)
        assert getattr(streamed, "thinking", None) == getattr(whole, "thinking", None)
    assert final.stop_reason == answer.stop_reason
    assert final.usage.output_tokens == answer.usage.output_tokens
    counted = {key: value for key, value in asked.items() if key != "max_tokens"}
    assert client.messages.count_tokens(**counted).input_tokens == answer.usage.input_tokens


def test_anthropic_history(claude):
    app, client = claude
    app.say("</think>ok")
    client.messages.create(
        model="m",
        max_tokens=50,
        thinking={"type": "disabled"},
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: 123"},
            {"type": "text", "text": "Base.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Q"}]},
            {"role": "system", "content": "HOOK"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "T", "signature": "s"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no"}],
                    },
                    {"type": "text", "text": "Go on"},
                ],
            },
        ],
    )
    prompt = app.tokenizer.decode(app.last.prompt_ids)
    assert "billing" not in prompt
    assert "Effort: Low<|system|>Base.<|user|>Q<|system|>HOOK<|assistant|>" in prompt
    assert "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>" in prompt
    assert "<tool_response>Error: no</tool_response><|user|>Go on<|assistant|><think>" in prompt


def test_anthropic_prefill_and_stop_sequence(claude):
    app, client = claude
    app.say("forty-two. More")
    prefilled = [*ASK, {"role": "assistant", "content": "The answer is "}]
    answer = client.messages.create(
        model="m", max_tokens=50, messages=prefilled, stop_sequences=["."]
    )
    assert answer.content[0].text == "forty-two"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", ".")
    assert app.tokenizer.decode(app.last.prompt_ids).endswith("<think></think>The answer is ")


def test_anthropic_errors(claude):
    _, client = claude
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* > 4096 maximum"):
        client.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "word " * 9000}]
        )
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model="m", max_tokens=0, messages=ASK)
    assert bad.value.body["error"]["type"] == "invalid_request_error"
