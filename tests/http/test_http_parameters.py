"""What each request parameter does to the engine's request and to the answer."""

from __future__ import annotations

import asyncio
import json

import pytest
from stream_grammar import chat_stream

from glm53_server.engine.base import Sampling

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a"],
        },
    },
}
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
OTHER = {"type": "function", "function": {"name": "g"}}


def run(work):
    return asyncio.run(work)


def error_of(response):
    assert response.status_code == 400, response.text
    return response.json()["error"]


def test_sampling_reaches_the_engine(app):
    run(
        app.chat(
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            seed=-7,
            frequency_penalty=0.25,
            presence_penalty=-0.5,
            repetition_penalty=1.1,
            logit_bias={"5": 3, "9": -100},
            min_tokens=2,
            stop_token_ids=[11],
            max_tokens=9,
            max_completion_tokens=7,
        )
    )
    assert app.last.sampling == Sampling(
        0.5, 0.9, 40, 0.1, -7, 0.25, -0.5, 1.1, ((5, 3.0), (9, -100.0))
    )
    assert (app.last.min_tokens, app.last.max_tokens) == (2, 7)
    assert 11 in app.last.stop_ids
    assert app.engine.info.eos_ids <= app.last.stop_ids


def test_defaults_and_absent_values(app):
    run(
        app.chat(
            max_tokens=-1, stop=None, seed=None, tools=[], top_k=-1, logit_bias=None, user=5,
            prompt_cache_key={"any": "type"}, metadata=[1], unknown_field=True,
        )
    )  # fmt: skip
    assert app.last.sampling == Sampling()
    assert app.last.max_tokens == 4096 - len(app.last.prompt_ids)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e308}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 257]}, "stop[0]"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop_token_ids": [4096]}, "stop_token_ids"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "z"}}}, "tool_choice"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
        ({"guided_regex": "((("}, "guided_regex"),
        ({"guided_regex": "a" * 3000}, None),
        ({"guided_json": {"type": "nope"}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": ENDLESS}, "guided_json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ENDLESS}}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": ENDLESS}}],
          "tool_choice": "required"}, "tools"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"clear_thinking": "no"}}, "chat_template_kwargs.clear_thinking"),
        ({"enable_thinking": "false"}, "enable_thinking"),
        ({"enable_thinking": 0}, "enable_thinking"),
        ({"enable_thinking": {}}, "enable_thinking"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_refusals_name_the_parameter(app, fields, param):
    error = error_of(run(app.chat(**fields)))
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


def test_n_choices_interleave_with_their_own_role_and_finish(app):
    app.say("r</think>one two three")

    async def ask():
        answer = (await app.chat(n=3, seed=5)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        seeds = [request.sampling.seed for request in list(app.engine.requests)[-3:]]
        assert seeds == [5, 6, 7]
        one = (await app.chat()).json()["usage"]
        assert answer["usage"]["prompt_tokens"] == one["prompt_tokens"]
        assert answer["usage"]["completion_tokens"] == 3 * one["completion_tokens"]
        stream = await app.chat(n=3, stream=True, stream_options={"include_usage": True})
        folded, usage = chat_stream(stream.text, usage=True, choices=3)
        assert {choice.content for choice in folded} == {"one two three"}
        assert usage == answer["usage"]

    run(ask())


def test_ignore_eos_and_min_tokens(app):
    app.say("</think>ab")

    async def ask():
        await app.chat(ignore_eos=True, stop_token_ids=[50], max_tokens=4)
        assert app.last.stop_ids == frozenset({50})
        answer = (await app.chat(min_tokens=20)).json()
        assert answer["usage"]["completion_tokens"] > 20

    run(ask())


def test_stop_strings_wait_for_min_tokens(app):
    app.say("</think>a b a b a b a b")
    content = run(app.chat(stop="b", min_tokens=6)).json()["choices"][0]["message"]["content"]
    assert content.startswith("a b a")
    assert content.count("b") < 4


def test_a_stop_token_id_ends_the_text_before_it(app):
    ids = app.tokenizer.encode_raw(" stop")
    app.say("</think>one stop two")
    answer = run(app.chat(stop_token_ids=[ids[-1]])).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "two" not in answer["choices"][0]["message"]["content"]
    assert not answer["choices"][0]["message"]["content"].endswith("stop")


def test_stop_strings_see_content_only(app):
    app.say("plan\n\nmore</think>A\n\nB")
    message = run(app.chat(stop=["\n\n", "</think>"])).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "plan\n\nmore"
    assert message["content"] == "A"
    app.say("</think><tool_call>g<arg_key>k</arg_key><arg_value>{a}</arg_value></tool_call>")
    choice = run(app.chat(stop="}", tools=[OTHER])).json()["choices"][0]
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"k": "{a}"}


def test_include_reasoning_false_hides_but_counts_it(app):
    app.say("secret plan</think>Hi")

    async def ask():
        answer = (await app.chat(include_reasoning=False)).json()
        assert "reasoning_content" not in answer["choices"][0]["message"]
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 1
        (folded,), _ = chat_stream((await app.chat(include_reasoning=False, stream=True)).text)
        assert (folded.reasoning, folded.content) == ("", "Hi")

    run(ask())


def test_parallel_tool_calls_false_ends_after_the_first_call(app):
    app.say("</think><tool_call>f</tool_call><tool_call>g</tool_call>tail", size=100)

    async def ask():
        fields = {"tools": [TOOL, OTHER], "parallel_tool_calls": False}
        (choice,) = (await app.chat(**fields)).json()["choices"]
        assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["f"]
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "tool_calls"
        (folded,), _ = chat_stream((await app.chat(**fields, stream=True)).text)
        assert [call["name"] for call in folded.calls] == ["f"]

    run(ask())


def test_tool_choice_none_keeps_the_tools_and_bans_the_call_token(app):
    app.say("</think>x")
    call_id = app.tokenizer.id_of("<tool_call>")

    async def ask():
        await app.chat(tools=[TOOL])
        with_tools = app.last.prompt_ids
        await app.chat(tools=[TOOL], tool_choice="none")
        assert app.last.prompt_ids == with_tools
        assert (call_id, -100.0) in app.last.sampling.logit_bias

    run(ask())


def test_forced_tool_calls_are_a_grammar_in_the_models_own_form(app):
    think_end = app.tokenizer.id_of("</think>")

    async def ask():
        await app.chat(tools=[TOOL, OTHER], tool_choice="required")
        grammar = app.last.grammar
        assert (grammar.kind, grammar.start_after_id) == ("lark", think_end)
        assert '"f"' in grammar.text
        assert '"g"' in grammar.text
        named = {"type": "function", "function": {"name": "g"}}
        await app.chat(tools=[TOOL, OTHER], tool_choice=named)
        assert '"f"' not in app.last.grammar.text
        off = {"enable_thinking": False}
        await app.chat(tools=[TOOL], tool_choice="required", chat_template_kwargs=off)
        assert app.last.grammar.start_after_id is None

    run(ask())


def test_output_constraints(app):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    forms = [
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}, "json_schema"),
        ({"guided_json": json.dumps(schema)}, "json_schema"),
        ({"structured_outputs": {"json": schema}}, "json_schema"),
        ({"guided_regex": "[0-9]+"}, "regex"),
        ({"structured_outputs": {"regex": "[0-9]+"}}, "regex"),
        ({"guided_choice": ["yes", "no"]}, "lark"),
        ({"guided_grammar": 'start: "a" | "b"'}, "lark"),
    ]  # fmt: skip

    async def ask():
        for fields, kind in forms:
            assert (await app.chat(**fields)).status_code == 200
            assert app.last.grammar.kind == kind
            assert app.last.grammar.start_after_id == app.tokenizer.id_of("</think>")
            completion = await app.post("/v1/completions", {"prompt": "x", **fields})
            assert completion.status_code == 200
            assert app.last.grammar.start_after_id is None
        await app.chat(response_format={"type": "text"})
        assert app.last.grammar is None

    run(ask())


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "(a+)+$"},
        {"guided_regex": "a{1,100000}"},
        {"guided_regex": "(a{1,1000}){1,1000}"},
        {"guided_regex": "(.{1,500}x){1,500}"},
        {"guided_json": json.loads('{"items":' * 100 + "{}" + "}" * 100)},
        {"guided_json": {"$ref": "#"}},
        {"guided_json": {"type": "array", "maxItems": 10**9, "items": {"type": "string", "maxLength": 10**9}}},
        {"guided_json": {"anyOf": [{"properties": {f"k{i}": {"enum": list(range(20))}}} for i in range(300)]}},
        {"guided_grammar": "start: " + "(" * 2000 + '"a"' + ")" * 2000},
    ],
    ids=lambda fields: json.dumps(fields)[:50],
)  # fmt: skip
def test_hostile_grammars_are_bounded(app, fields):
    """Each is compiled or refused in time, while the event loop goes on."""

    async def ask():
        loop = asyncio.get_running_loop()
        longest_s, over = 0.0, False

        async def tick():
            nonlocal longest_s
            while not over:
                before_s = loop.time()
                await asyncio.sleep(0.005)
                longest_s = max(longest_s, loop.time() - before_s)

        ticking = asyncio.create_task(tick())
        start_s = loop.time()
        response = await app.chat(**fields)
        over = True
        await ticking
        assert response.status_code in {200, 400}
        assert loop.time() - start_s < 6
        assert longest_s < 1
        assert (await app.chat()).status_code == 200

    run(ask())


def test_reasoning_effort_and_thinking_switches(app):
    async def prompt(**fields):
        assert (await app.chat(**fields)).status_code == 200
        return app.tokenizer.decode(app.last.prompt_ids)

    async def ask():
        for effort, level in [
            ("minimal", "Low"), ("low", "Low"), ("medium", "High"), ("high", "High"),
            ("xhigh", "Max"), ("max", "Max"), ("odd", "Max"), (None, "Max"),
        ]:  # fmt: skip
            assert f"Effort: {level}<" in await prompt(reasoning_effort=effort)
            assert f"Effort: {level}<" in await prompt(reasoning={"effort": effort})
        assert "Effort: Low<" in await prompt(chat_template_kwargs={"reasoning_effort": "low"})
        for fields in (
            {"reasoning_effort": "none"},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
            {"thinking": {"type": "disabled"}},
        ):
            assert (await prompt(**fields)).endswith("<|assistant|><think></think>")
        assert (await prompt()).endswith("<|assistant|><think>")
        assert (await prompt(add_generation_prompt=False)).endswith("Hi")

    run(ask())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("beside", "in_template", "thinks"),
    [
        (None, None, True),
        (True, None, True),
        (False, None, False),
        (None, False, False),
        (False, True, True),
        (True, False, False),
    ],
)
def test_the_template_s_own_variable_outranks_the_field_beside_it(
    app, beside, in_template, thinks, stream
):
    """Also in `/tokenize`, so that what is counted is what is sent."""
    fields = {
        "enable_thinking": beside,
        "chat_template_kwargs": {"enable_thinking": in_template},
    }
    app.say("words</think>more" if thinks else "more")

    async def ask():
        response = await app.chat(stream=stream, **fields)
        assert response.status_code == 200
        if stream:
            (choice,), _ = chat_stream(response.text)
            content, reasoning = choice.content, choice.reasoning
        else:
            message = response.json()["choices"][0]["message"]
            content, reasoning = message["content"], message.get("reasoning_content")
        assert (content, reasoning or "") == ("more", "words" if thinks else "")
        ids = app.last.prompt_ids
        tail = "<think>" if thinks else "<think></think>"
        assert app.tokenizer.decode(ids).endswith(f"<|assistant|>{tail}")
        messages = [{"role": "user", "content": "Hi"}]
        counted = await app.post("/tokenize", {"messages": messages, **fields})
        assert counted.json()["tokens"] == list(ids)

    run(ask())
