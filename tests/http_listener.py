"""An application on a real loopback socket, for tests of more than one folder."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from glm53_server.http_protocol import DeadlineProtocol


@contextmanager
def listening(application: Any) -> Iterator[str]:
    """Serve an ASGI application on a free loopback port from a thread; yields its URL."""
    config = uvicorn.Config(
        application, http=DeadlineProtocol, log_level="warning", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
