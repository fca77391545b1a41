"""Lines of the server in the log look like those of the supervisor: one form of time, with its zone."""

from __future__ import annotations

import logging
import re

from glm53_server.serving import LogLine
from glm53ctl.supervisor import logs

TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d ")


def test_both_writers_of_the_log_have_the_same_clock(tmp_path):
    record = logging.LogRecord("glm53_server", logging.INFO, "x.py", 1, "POST /x 200", None, None)
    assert TIME.match(LogLine("%(asctime)s %(levelname)s %(message)s").format(record))
    logs.note(tmp_path / "server.log", "ready")
    assert TIME.match((tmp_path / "server.log").read_text())
