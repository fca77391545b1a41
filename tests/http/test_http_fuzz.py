"""A few hundred hostile requests in one go; bench/http_soak.py sends ten thousand of the same kind."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from itertools import islice
from pathlib import Path

from stream_grammar import frames

SOURCE = Path(__file__).parents[2] / "bench" / "hostile.py"


def generator():
    spec = importlib.util.spec_from_file_location("hostile", SOURCE)
    module = sys.modules["hostile"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.hostile_requests


def test_hostile_requests_never_break_the_server(make_app):
    app = make_app(context=512)

    async def ask():
        codes = []
        for request in islice(generator()(1), 400):
            answer = await app.client.post(
                request.path, content=request.body, headers={"content-type": request.content_type}
            )
            codes.append(answer.status_code)
            assert answer.status_code < 500, (request.path, request.body[:300], answer.text)
            if answer.headers["content-type"].startswith("text/event-stream"):
                assert list(frames(answer.text))
            elif answer.status_code >= 400:
                assert answer.json()["error"]["message"]
                assert len(answer.content) < 2000
            else:
                json.loads(answer.text)
        assert codes.count(200) > 40, "some of them are harmless"
        assert codes.count(400) > 100
        assert app.service.metrics.in_flight == app.engine.running == 0
        assert (await app.chat()).status_code == 200

    asyncio.run(ask())
