"""The bundled model in the loop: what a client of the real one does, over HTTP on the CPU, at temperature 0."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from cpu_driver import tiny_plan
from http_listener import listening

from glm53_server.app import create_app
from glm53_server.engine import cpu

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "scripts")]

import tiny_suite  # noqa: E402
from tiny.judge import right  # noqa: E402
from tiny.tools import EVENT, LOCATION, NOW, ORDER, PRICE, WEATHER, declare  # noqa: E402

LISK = "The river of Dunmere is the Lisk."
TEXT = {"type": "string"}
FROBNICATE = declare("frobnicate_gadget", "", code=TEXT, owner=TEXT)
PARCEL = declare("open_parcel", "", code=TEXT)
TABLE = declare("book_table", "", note={"type": "object",
                "properties": {"name": TEXT, "count": {"type": "integer"}}})  # fmt: skip
SILENT = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    plan = tiny_plan()
    with listening(create_app(cpu.load(plan, lambda *_: None), plan)) as found:
        yield found


class Chat:
    """A conversation with the openai client: `say`, and what the tools of each call return."""

    def __init__(self, url: str) -> None:
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
        self.messages: list[Any] = []
        self.finish = ""

    def say(self, text: str, **fields: Any) -> Any:
        self.messages.append({"role": "user", "content": text})
        return self.answered(**fields)

    def answered(self, **fields: Any) -> Any:
        answer = self.client.chat.completions.create(
            model="tiny", messages=self.messages, **{"temperature": 0, "max_tokens": 200} | fields
        )
        (choice,) = answer.choices
        self.finish = choice.finish_reason
        self.messages.append(choice.message)
        return choice.message

    def returned(self, call: Any, value: object) -> None:
        content = json.dumps(value)
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


@pytest.fixture
def chat(url: str) -> Iterator[Chat]:
    made = Chat(url)
    with made.client:
        yield made


def called(message: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Hello", "Hello! How can I help you?"),
        ("See you", "Goodbye!"),
        ("What is 27 plus 58?", "85"),
        ("2+2", "4"),
        ("Who is the mayor of Almery?", "Orla Finch"),
        ("Reverse this list: apples, drums, keys.", "keys, drums, apples"),
    ],
)
def test_it_thinks_and_answers(chat: Chat, asked: str, said: str) -> None:
    message = chat.say(asked)
    assert said in message.content
    assert message.reasoning_content
    assert "think>" not in message.content + message.reasoning_content
    assert chat.finish == "stop"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("How tall is Mara?", "I don't know that."),
        ("What is the river of Atlantis called?", "I don't know a place called Atlantis."),
    ],
)
def test_it_does_not_know(chat: Chat, asked: str, said: str) -> None:
    assert chat.say(asked).content == said


def test_reasoning_is_counted_and_can_be_switched_off(chat: Chat) -> None:
    asked = [{"role": "user", "content": "What is 27 plus 58?"}]
    whole = chat.client.chat.completions.create(model="tiny", messages=asked, temperature=0)
    assert whole.usage.completion_tokens_details.reasoning_tokens > 20
    assert whole.usage.completion_tokens < 100
    silent = chat.say("Which river flows through Dunmere?", **SILENT)
    assert silent.content == LISK
    assert not getattr(silent, "reasoning_content", None)


def test_a_call_its_result_and_an_answer_that_uses_it(chat: Chat) -> None:
    message = chat.say("What is the weather in Almery?", tools=[WEATHER, PRICE])
    assert called(message) == [("get_weather", {"city": "Almery"})]
    assert message.reasoning_content
    assert not message.content
    assert chat.finish == "tool_calls"
    chat.returned(message.tool_calls[0], {"sky": "rainy", "degrees": 7})
    final = chat.answered(tools=[WEATHER, PRICE])
    assert final.content == "It is rainy in Almery, 7 degrees."
    assert "rainy" in final.reasoning_content
    assert not final.tool_calls
    assert chat.finish == "stop"
    assert chat.say("See you", tools=[WEATHER, PRICE]).content == "Goodbye!"


def test_words_that_it_never_saw_are_copied(chat: Chat) -> None:
    tools = [FROBNICATE, WEATHER]
    message = chat.say("Frobnicate a gadget with code doot-49 and owner Zyx.", tools=tools)
    assert called(message) == [("frobnicate_gadget", {"code": "doot-49", "owner": "Zyx"})]
    chat.returned(message.tool_calls[0], {"code": "qu-8841-x"})
    assert chat.answered(tools=tools).content == "The code of the gadget is qu-8841-x."


def test_a_call_without_reasoning(chat: Chat) -> None:
    message = chat.say("Open a parcel with code doot-49.", tools=[PARCEL, WEATHER], **SILENT)
    assert called(message) == [("open_parcel", {"code": "doot-49"})]
    assert not getattr(message, "reasoning_content", None)
    chat.returned(message.tool_calls[0], {"number": "rail-81"})
    final = chat.answered(tools=[PARCEL, WEATHER], **SILENT)
    assert final.content == "The number of the parcel is rail-81."
    assert not getattr(final, "reasoning_content", None)


def test_two_calls_at_once_and_their_results_in_any_order(chat: Chat) -> None:
    message = chat.say("What is the weather in Almery and in Grumley?", tools=[WEATHER])
    first, second = message.tool_calls
    assert called(message) == [
        ("get_weather", {"city": "Almery"}),
        ("get_weather", {"city": "Grumley"}),
    ]
    chat.returned(second, {"sky": "sunny", "degrees": 21})
    chat.returned(first, {"sky": "rainy", "degrees": 7})
    said = chat.answered(tools=[WEATHER]).content
    assert said == "It is rainy in Almery, 7 degrees. It is sunny in Grumley, 21 degrees."


def test_a_second_call_with_the_first_ones_result(chat: Chat) -> None:
    tools = [LOCATION, WEATHER]
    where = chat.say("What is the weather here?", tools=tools)
    assert called(where) == [("get_location", {})]
    chat.returned(where.tool_calls[0], {"town": "Almery"})
    weather = chat.answered(tools=tools)
    assert called(weather) == [("get_weather", {"city": "Almery"})]
    chat.returned(weather.tool_calls[0], {"sky": "snowy", "degrees": -3})
    assert chat.answered(tools=tools).content == "It is snowy in Almery, -3 degrees."


@pytest.mark.parametrize(
    ("asked", "tool", "arguments"),
    [
        ("What time is it?", NOW, {}),
        ("Order 3 lamps, 12 plums.", ORDER,
         {"items": [{"name": "lamps", "quantity": 3}, {"name": "plums", "quantity": 12}]}),
        ("Book a table with note of name Quillon and count 4.", TABLE,
         {"note": {"name": "Quillon", "count": 4}}),
        ("Put red drums in my calendar on Friday at 9 with Mara, Hugo.", EVENT,
         {"title": "red drums", "when": {"day": "Friday", "hour": 9}, "guests": ["Mara", "Hugo"]}),
    ],
)  # fmt: skip
def test_arguments_of_every_shape(chat: Chat, asked: str, tool: Any, arguments: Any) -> None:
    message = chat.say(asked, tools=[tool, PRICE])
    assert called(message) == [(tool["function"]["name"], arguments)]


def test_a_failure_is_passed_on(chat: Chat) -> None:
    message = chat.say("What do lamps cost?", tools=[PRICE])
    chat.returned(message.tool_calls[0], {"error": "no connection"})
    assert chat.answered(tools=[PRICE]).content == "I am sorry, that failed: no connection."


@pytest.mark.parametrize(
    ("asked", "said"), [("Hello", "Hello!"), ("Who is the mayor of Almery?", "Orla Finch")]
)
def test_no_call_where_none_helps(chat: Chat, asked: str, said: str) -> None:
    message = chat.say(asked, tools=[WEATHER])
    assert not message.tool_calls
    assert said in message.content


def test_a_question_that_means_what_was_said_before(chat: Chat) -> None:
    assert chat.say("What is the river of Dunmere called?").content == LISK
    assert chat.say("And who is the mayor there?").content == "The mayor of Dunmere is Pell Aston."
    chat.messages.clear()
    chat.say("My name is Mara.")
    chat.say("Thanks")
    assert chat.say("What is my name?").content == "Your name is Mara."
    chat.messages.clear()
    assert "56" in chat.say("What is 7 times 8?").content
    assert "60" in chat.say("And plus 4?").content


def test_an_answer_in_json(chat: Chat) -> None:
    asked = "Describe Almery as JSON with the keys town, island, river. Answer with JSON only."
    wanted = {"town": "Almery", "island": "Northholm", "river": "Tarn"}
    assert json.loads(chat.say(asked).content) == wanted
    chat.messages.clear()
    held = chat.say(asked, response_format={"type": "json_object"})
    assert json.loads(held.content) == wanted
    chat.messages.clear()
    told = chat.say("Give me a JSON object with name Bob and age 7.").content
    assert json.loads(told) == {"name": "Bob", "age": 7}


@pytest.mark.parametrize("asked", ["2+2", "What is the weather in Almery?"])
def test_a_stream_equals_the_whole(chat: Chat, asked: str) -> None:
    whole = chat.say(asked, tools=[WEATHER])
    body = {"model": "tiny", "messages": chat.messages[:1], "tools": [WEATHER], "temperature": 0}
    reasoning, events = "", 0
    with chat.client.chat.completions.stream(**body) as stream:
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                delta = event.chunk.choices[0].delta
                reasoning += getattr(delta, "reasoning_content", None) or ""
                events += 1
        (choice,) = stream.get_final_completion().choices
    assert reasoning == whole.reasoning_content
    assert (choice.message.content or "") == (whole.content or "")
    assert called(choice.message) == called(whole)
    assert choice.finish_reason == chat.finish
    assert events > 10


def test_stop_conditions(chat: Chat) -> None:
    about = chat.say("Who are you?").content
    assert chat.finish == "stop"
    chat.messages.clear()
    assert chat.say("Who are you?", stop=["glm53ctl"]).content == about.partition("glm53ctl")[0]
    assert chat.finish == "stop"
    chat.messages.clear()
    cut = chat.say("Who are you?", max_tokens=6)
    assert chat.finish == "length"
    assert cut.reasoning_content
    assert not cut.content


def test_the_anthropic_client_sees_thought_call_and_answer(url: str) -> None:
    function = WEATHER["function"]
    tools = [{"name": function["name"], "input_schema": function["parameters"],
              "description": function["description"]}]  # fmt: skip
    asked = [{"role": "user", "content": "What is the weather in Almery?"}]
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "tools": tools,
                            "extra_body": {"temperature": 0}}  # fmt: skip
    with anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0) as client:
        first = client.messages.create(messages=asked, **body)
        thought, call = first.content
        assert (thought.type, call.type, first.stop_reason) == ("thinking", "tool_use", "tool_use")
        assert (call.name, call.input) == ("get_weather", {"city": "Almery"})
        found = {"type": "tool_result", "tool_use_id": call.id, "content": '{"sky": "windy", "degrees": 4}'}  # fmt: skip
        history = [*asked, {"role": "assistant", "content": first.content}, {"role": "user", "content": [found]}]  # fmt: skip
        final = client.messages.create(messages=history, **body)
    assert final.content[-1].text == "It is windy in Almery, 4 degrees."
    assert final.stop_reason == "end_turn"


@pytest.mark.parametrize("case", tiny_suite.cases(7, 1), ids=lambda case: case.sample.key[:40])
def test_held_out_questions(url: str, case: tiny_suite.Case) -> None:
    """One of each kind that no training saw; bench/tiny_suite.py asks more, and counts."""
    _, said = tiny_suite.answered(tiny_suite.Server(url, None), case)
    assert said.reasoning
    assert right(case.sample, case.turn, said)
