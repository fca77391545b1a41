"""What clients hear while the model loads: 503 with the progress, from the port the server will have.

The port listens from the start, so a second server on it fails at once instead of after its load, and
health checks see "not yet" instead of a closed door. Connections that arrive during the hand-over wait
in the socket's queue and are answered by the real server.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

_CLIENT_S = 2.0  # a client that does not finish its request may not hold up the others
_POLL_S = 0.05


class LoadingPage:
    """The words of the answer. Set from the loading thread, read by the answering one."""

    def __init__(self) -> None:
        self.words = "starting"

    def progress(self, phase: str, done: int, total: int) -> None:
        self.words = f"{phase} {done}/{total}" if total else phase


@contextmanager
def answering(listener: socket.socket, page: LoadingPage) -> Generator[None]:
    """Answer on a listening socket, in a thread, until the block ends. The socket stays open."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_S

        def answer(self) -> None:
            message = f"the server is loading: {page.words}"
            error = {"message": message, "type": "server_error", "param": None, "code": "loading"}
            body = json.dumps({"status": "loading", "error": error}).encode()
            self.send_response(503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "5")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = HTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), name="loading-page")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
