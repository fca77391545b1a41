"""What is measured: an instance of ours, or any server by its URL."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from glm53ctl import client
from glm53ctl.bench import damage
from glm53ctl.checkpoint import Checkpoint, ModelFacts, facts, open_checkpoint
from glm53ctl.errors import BadModel, NotRunning, UsageError
from glm53ctl.paths import tiny_checkpoint
from glm53ctl.plan import EngineName, Mode, Plan, read_plan
from glm53ctl.supervisor.state import Instance

PANEL_PATTERN = "*ref-panel.json"


@dataclass(frozen=True, slots=True)
class Target:
    """A server to measure. Without a plan nothing is known but what it tells over HTTP."""

    url: str
    key_file: str | None = None
    plan: Plan | None = None
    server_pid: int | None = None
    folder: Path | None = None  # the instance's state; None for a foreign server

    def flags(self) -> list[str]:
        """--url and --api-key-file for a script."""
        key = ["--api-key-file", self.key_file] if self.key_file else []
        return ["--url", self.url, *key]

    @property
    def mode(self) -> Mode | None:
        return self.plan.mode if self.plan else None

    @property
    def computes(self) -> bool:
        """Whether real weights answer: a scripted engine and dummy weights have no quality."""
        plan = self.plan
        if plan is None:
            return True
        return plan.engine is not EngineName.SCRIPTED and plan.model.load_format == "checkpoint"

    def checkpoint(self) -> Checkpoint | None:
        """The served checkpoint, when it is on this machine and can be read."""
        if self.plan is None:
            return None
        try:
            return open_checkpoint(Path(self.plan.model.path))
        except BadModel:
            return None

    def facts(self) -> ModelFacts | None:
        found = self.checkpoint()
        return facts(found) if found is not None else None

    def panel(self) -> Path | None:
        """The reference panel of the served checkpoint: beside it, or the bundled one of tiny."""
        if not self.computes:
            return None
        found = self.checkpoint()
        if found is None:
            return None
        beside = sorted(found.path.glob(PANEL_PATTERN))
        if beside:
            return beside[0]
        return tiny_checkpoint().parent / "tiny-ref-panel.json" if damage.is_tiny(found) else None


def of_instance(instance: Instance) -> Target:
    """The running instance. Raises NotRunning unless it serves."""
    record, running = client.current(instance)
    if record is None or not running or record["phase"] != "ready":
        state = record["phase"] if record else "stopped"
        raise NotRunning(
            f"{instance.name!r} is {state}, there is nothing to measure",
            hint=f"glm53ctl up{instance.option}, or --url URL for another server",
        )
    plan = read_plan(instance.plan_path)
    child = cast("dict[str, Any]", record.get("child") or {})
    return Target(record["url"], plan.listen.api_key_file, plan, child.get("pid"), instance.folder)


def of_url(url: str, key_file: Path | None) -> Target:
    """A server by URL."""
    return Target(url.rstrip("/").removesuffix("/v1"), str(key_file) if key_file else None)


def check_answers(target: Target, *, timeout_s: float = 5.0) -> None:
    """Any HTTP answer will do. Raises NotRunning when nothing answers, UsageError for no URL."""
    import httpx

    try:
        with httpx.Client(trust_env=False, verify=False, timeout=timeout_s) as http:
            http.get(f"{target.url}/v1/models", headers=_headers(target))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as err:
        raise UsageError(f"--url {target.url}: give http://HOST:PORT") from err
    except httpx.HTTPError as err:
        raise NotRunning(
            f"nothing answers at {target.url}: {err or type(err).__name__}",
            hint="check the address; glm53ctl status shows the servers of this user",
        ) from err


def fetch(target: Target, path: str, *, timeout_s: float = 5.0) -> dict[str, Any] | None:
    """One JSON object from the server; None when it does not answer with one."""
    import httpx

    headers = _headers(target)
    try:
        with httpx.Client(trust_env=False, verify=False, timeout=timeout_s) as http:
            answer = http.get(target.url + path, headers=headers)
            body: object = answer.json() if answer.is_success else None
    except (httpx.HTTPError, json.JSONDecodeError):
        return None
    return cast("dict[str, Any]", body) if isinstance(body, dict) else None


def _headers(target: Target) -> dict[str, str]:
    if target.key_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {Path(target.key_file).read_text('utf-8').split()[0]}"}
    except (OSError, IndexError) as err:
        raise UsageError(f"cannot read an API key from {target.key_file}") from err
