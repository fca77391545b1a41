"""LiteLLM, in a process of its own: its import is slow, warns, and would read the environment."""

import json
import os
import subprocess
import sys

TEXT = "Let me see.</think>Hello Zürich"
CALL = "check</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
SCRIPT = """
import json, sys
import litellm

litellm.suppress_debug_info = True
url, what = sys.argv[1:3]
tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}
ask = dict(
    model="openai/tiny", api_base=f"{url}/v1", api_key="unused", max_retries=0,
    messages=[{"role": "user", "content": "Hi"}],
)
if what == "whole":
    message = litellm.completion(**ask).choices[0].message
    found = [message.content, message.reasoning_content]
elif what == "stream":
    parts = [chunk.choices[0].delta for chunk in litellm.completion(**ask, stream=True)]
    found = ["".join(p.content or "" for p in parts),
             "".join(getattr(p, "reasoning_content", None) or "" for p in parts)]
elif what == "tools":
    (call,) = litellm.completion(**ask, tools=[tool]).choices[0].message.tool_calls
    found = [call.function.name, json.loads(call.function.arguments)]
else:
    try:
        litellm.completion(**{**ask, "messages": [{"role": "user", "content": "word " * 20000}]})
        found = "no error"
    except litellm.ContextWindowExceededError:
        found = "context"
print(json.dumps(found))
"""


def ask(url: str, what: str) -> object:
    environment = {"PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, url, what],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_litellm_reads_whole_answers_and_streams(live):
    app, url = live()
    app.say(TEXT)
    assert ask(url, "whole") == ["Hello Zürich", "Let me see."]
    app.say(TEXT, size=3)
    assert ask(url, "stream") == ["Hello Zürich", "Let me see."]


def test_litellm_reads_tool_calls(live):
    app, url = live()
    app.say(CALL)
    assert ask(url, "tools") == ["get_weather", {"city": "Oslo"}]


def test_litellm_knows_an_overflow_of_the_context(live):
    _, url = live()
    assert ask(url, "overflow") == "context"
