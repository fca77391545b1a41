"""The parts of a report, one stage after the other; what one crash breaks is one finding.

When the server ends while the report is made, the stages that need it are skipped: a dead server is
not five things that are not reachable.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from glm53ctl import __version__, client, doctor, status_view
from glm53ctl import profile as profiles
from glm53ctl.asked_model import asked_model
from glm53ctl.choose import PlanOptions
from glm53ctl.env import Environ, rows
from glm53ctl.errors import Glm53Error
from glm53ctl.plan import Plan, read_plan
from glm53ctl.probes.system import System
from glm53ctl.report.scrub import Scrubber, numbers, only
from glm53ctl.supervisor import logs
from glm53ctl.supervisor.access import auth_headers
from glm53ctl.supervisor.state import Instance

PACKAGES = ("torch", "transformers", "exllamav3", "triton", "fastapi", "huggingface-hub", "typer")
LOG_LINES = 300
CRASH_FILES = 3
_SETTLE_S = 3.0
_RECORD = (
    "instance", "phase", "phase_s", "health", "health_words", "restarts", "crashes", "ever_ready", "exit_code",
    "progress", "mode", "engine", "model", "fingerprint", "uptime_s", "last_failure.kind",
    "last_failure.summary", "last_failure.healing", "last_failure.exit_code", "last_failure.error_id",
    "last_failure.proof",
)  # fmt: skip
_PLAN = (
    "schema", "mode", "engine", "model.served_name", "model.context_tokens", "model.load_format", "listen.host",
    "listen.port", "cpu", "limits", "gpu", "cpu_tier", "choices", "budgets",
)  # fmt: skip
_CHECK = ("id", "title", "status", "blocking", "observed", "required", "ms")
_PLACES = ("paths.root", "model.dir", "model.models_dir", "listen.api_key_file", "download.mirrors")


@dataclass(frozen=True, slots=True)
class Bundle:
    """File name -> text of every part, findings, and the stages that were skipped with the reason."""

    parts: dict[str, str] = field(default_factory=dict[str, str])
    findings: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])

    def add_json(self, name: str, body: Any) -> None:
        self.parts[name] = json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def scrubber(environ: Environ, plan: Plan | None) -> Scrubber:
    """Knows the secrets of this user, to keep them out."""
    home = environ.get("HOME") or ""
    key_files = [Path(home) / ".cache/huggingface/token"]
    named = (environ.get("GLM53_API_KEY_FILE"), plan.listen.api_key_file if plan else None)
    key_files.extend(Path(name) for name in named if name)
    found = [environ.get("GLM53_API_KEY") or "", environ.get("HF_TOKEN") or ""]
    for file in key_files:
        try:
            found.extend(file.read_text(encoding="utf-8").split())
        except (OSError, UnicodeDecodeError):
            continue
    secrets = tuple(secret for secret in found if secret)
    user = environ.get("SUDO_USER") or Path(home).name
    return Scrubber(secrets, home, user, platform.node())


def collect(
    instance: Instance, environ: Environ, system: System, *, state_dir: Path, with_bench: bool
) -> Bundle:
    """Every stage in its own guard. Reads, asks the local server, writes nothing."""
    bundle = Bundle()
    plan = _plan(instance)
    scrub = scrubber(environ, plan)
    stages: tuple[tuple[str, Callable[[], None]], ...] = (
        ("versions", lambda: bundle.add_json("versions.json", _versions())),
        ("settings", lambda: bundle.add_json("settings.json", scrub.value(_settings(environ)))),
        (
            "doctor",
            lambda: bundle.add_json(
                "doctor.json", scrub.value(_doctor(system, asked_model(instance)))
            ),
        ),
        ("plan", lambda: _add_plan(bundle, plan, scrub)),
        ("instance", lambda: _instance(bundle, instance, plan, scrub)),
        ("log", lambda: _log(bundle, instance, scrub)),
        ("crashes", lambda: _crashes(bundle, state_dir / "crash", scrub)),
        ("bench", lambda: _bench(bundle, instance, with_bench=with_bench)),
    )
    for name, stage in stages:
        try:
            stage()
        except (Glm53Error, OSError, ValueError, KeyError) as err:
            bundle.skipped.append(scrub.text(f"{name}: {err}"))
    return bundle


def _plan(instance: Instance) -> Plan | None:
    try:
        return read_plan(instance.plan_path)
    except Glm53Error:
        return None


def _versions() -> dict[str, Any]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {
        "glm53ctl": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "packages": found,
    }


def _settings(environ: Environ) -> dict[str, Any]:
    """What is not a default, and where it came from; of places only that they are set."""
    found = profiles.load({}, environ=environ)
    values: dict[str, Any] = {}
    for row in rows():
        value = getattr(found.settings, row.field_name)
        layer = found.origins[row.key].layer
        if layer == "default":
            continue
        shown = "(set)" if row.key in _PLACES and value else profiles.text_of(value, row)
        values[row.key] = {"value": shown, "layer": layer}
    return {"profile": found.name, "settings": values, "warnings": list(found.warnings)}


def _doctor(system: System, model: str | None) -> dict[str, Any]:
    """Judged for the instance's model; without an instance, for that of the settings."""
    report = doctor.examine(PlanOptions(model=model), system)
    body = doctor.document(report, strict=False)
    return {
        "model": report.outcome.model_name if report.outcome else model,
        "exit_code": body["exit_code"],
        "checks": [only(check, _CHECK) for check in body["checks"]],
    }


def _add_plan(bundle: Bundle, plan: Plan | None, scrub: Scrubber) -> None:
    if plan is None:
        bundle.skipped.append("plan: this instance has none")
    else:
        bundle.add_json("plan.json", scrub.value(only(asdict(plan), _PLAN)))


def _instance(bundle: Bundle, instance: Instance, plan: Plan | None, scrub: Scrubber) -> None:
    record, running = client.current(instance)
    if record is None:
        bundle.skipped.append("instance: never started")
        return
    served = record["phase"] == "ready"
    stats = None
    if served and plan is not None:
        stats = status_view.fetch_stats(record, auth_headers(plan))
        if stats is None:
            record, running = _after_the_silence(instance, record)
    bundle.add_json("state.json", {"running": running, **scrub.value(only(record, _RECORD))})
    if stats is not None:
        bundle.add_json("stats.json", numbers(stats))
        return
    if served or record["last_failure"] is not None:
        bundle.findings.append(scrub.text(_finding(record, served=served)))
    bundle.skipped.append("stats: the server does not answer" if served else "stats: not serving")


def _after_the_silence(instance: Instance, record: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The record once the supervisor has noticed what made the server silent."""
    deadline = time.monotonic() + _SETTLE_S
    crashes = record["crashes"]
    while True:
        found, running = client.current(instance)
        latest = found or record
        noticed = latest["phase"] != "ready" or latest["crashes"] != crashes
        if noticed or time.monotonic() > deadline:
            return latest, running
        time.sleep(0.1)


def _finding(record: dict[str, Any], *, served: bool) -> str:
    """One sentence about a server that does not serve."""
    failure = record["last_failure"]
    words = f"{failure['kind']}: {failure['summary']}" if failure else str(record["phase"])
    if served and record["phase"] != "ready":
        return f"was running, crashed ({words})"
    return "running, but does not answer" if served else f"not serving: {words}"


def _log(bundle: Bundle, instance: Instance, scrub: Scrubber) -> None:
    lines = logs.tail(instance.log_path, LOG_LINES)
    if lines:
        bundle.parts["server.log"] = scrub.lines(lines) + "\n"


def _crashes(bundle: Bundle, folder: Path, scrub: Scrubber) -> None:
    for file in sorted(folder.glob("*.txt"))[-CRASH_FILES:]:
        text = file.read_text(encoding="utf-8", errors="replace")
        bundle.parts[f"crash/{file.name}"] = scrub.text(text)


def _bench(bundle: Bundle, instance: Instance, *, with_bench: bool) -> None:
    results = sorted((instance.folder / "bench").glob("*.json"))
    if with_bench and results:
        body = json.loads(results[-1].read_text(encoding="utf-8"))
        bundle.add_json("bench.json", numbers(body))
    elif with_bench:
        bundle.skipped.append("bench: there is no result")
