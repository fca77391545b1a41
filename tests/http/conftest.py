"""An app over the scripted engine, asked through httpx without a socket."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from http_listener import listening

from glm53_server.app import create_app
from glm53_server.engine import scripted
from glm53_server.metrics import Metrics
from glm53ctl.plan import (
    CpuPlan,
    EngineName,
    LimitsPlan,
    ListenPlan,
    Mode,
    ModelPlan,
    Plan,
    ScriptPlan,
)

TINY = Path(__file__).parents[2] / "reference" / "tiny"


def make_plan(*, script=None, listen=None, limits=None, context=4096):
    return Plan(
        mode=Mode.CPU,
        engine=EngineName.SCRIPTED,
        model=ModelPlan(str(TINY), "tiny", context),
        listen=listen or ListenPlan(),
        cpu=CpuPlan(1, (0,)),
        limits=limits or LimitsPlan(),
        script=script or ScriptPlan(tokens_per_s=0),
    )


class App:
    """One app, its engine and a client."""

    def __init__(self, plan):
        self.plan = plan
        self.engine = scripted.load(plan, lambda *_: None)
        self.asgi = create_app(self.engine, plan)
        self.tokenizer = self.asgi.state.service.tokenizer
        self.service = self.asgi.state.service
        transport = httpx.ASGITransport(self.asgi, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=30
        )

    async def post(self, path, body, **kwargs):
        return await self.client.post(path, json=body, **kwargs)

    async def get(self, path, **kwargs):
        return await self.client.get(path, **kwargs)

    async def chat(self, text="Hi", **fields):
        return await self.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields}
        )

    def say(self, text, *, size=1, **how):
        """Have the engine say this text from now on, `size` tokens per event."""
        ids = self.tokenizer.encode_raw(text)
        groups = tuple(tuple(ids[i : i + size]) for i in range(0, len(ids), size))
        self.engine.replay(scripted.Script(groups, **how))

    @property
    def last(self):
        """The engine request of the newest generation."""
        return self.engine.requests[-1]


@pytest.fixture(scope="session")
def plan_of():
    """plan_of(script=..., ...) -> Plan"""
    return make_plan


@pytest.fixture
def make_app():
    """make_app(script=..., listen=..., limits=..., context=...) -> App"""
    return lambda **parts: App(make_plan(**parts))


@pytest.fixture(scope="session")
def _shared():
    return App(make_plan())


@pytest.fixture
def app(_shared):
    """An app that many tests share; one that breaks its app makes its own."""
    _shared.say("<think></think>Hello from the scripted engine.")
    _shared.engine.requests.clear()
    _shared.service.metrics = Metrics()
    return _shared


@pytest.fixture(scope="session")
def serve():
    """with serve(script=..., ...) as (App, URL): an app on a real socket."""

    @contextmanager
    def start(**parts):
        app = App(make_plan(**parts))
        with listening(app.asgi) as url:
            yield app, url

    return start


@pytest.fixture
def live(make_app):
    """live(script=..., ...) -> (App, URL) on a real socket."""
    with ExitStack() as stack:

        def start(**parts):
            app = make_app(**parts)
            return app, stack.enter_context(listening(app.asgi))

        yield start
