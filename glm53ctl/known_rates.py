"""Measured rates kept between runs: one small JSON file per machine and card, in the cache folder.

Its name is a digest of what the rates depend on: with another card, slot, driver, CPU, amount of
memory or version of our kernels there is no such file. After 30 days its rates no longer count.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path

from glm53ctl import __version__
from glm53ctl.env import GIB
from glm53ctl.hardware import Gpu, Hardware, Measured
from glm53ctl.paths import foreign_home
from glm53ctl.probes.system import System

MAX_AGE_DAYS = 30


def recalled(hardware: Hardware, gpu: Gpu | None, folder: Path, *, today: date) -> Hardware:
    """The hardware with the rates that were measured on it before, dated; unchanged without any."""
    try:
        text = file_of(hardware, gpu, folder).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return hardware
    rates = parse(text, today=today)
    return hardware if rates is None else replace(hardware, measured=rates)


def keep(system: System, hardware: Hardware, gpu: Gpu | None, folder: Path, *, today: date) -> None:
    """Write the rates just measured. A cache: where it cannot be written, there is none.

    Only a whole measurement of an idle machine is kept, so that one beside a running server never
    replaces a good one.
    """
    from glm53ctl.supervisor.state import write_atomic

    rates, file = hardware.measured, file_of(hardware, gpu, folder)
    whole = rates.ram_read_bytes_per_s and rates.tier_bytes_per_s
    if not whole or (gpu and not rates.h2d_bytes_per_s):
        return
    if system.recorded or _load(system) > len(hardware.cpu.online) / 2:
        return
    body = {"date": today.isoformat(), "machine": identity(hardware, gpu), "rates": lasting(rates)}
    try:
        if foreign_home(system.environ, file, user_id=os.geteuid()):
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(file, json.dumps(body, indent=2) + "\n")
    except OSError:
        return


def _load(system: System) -> float:
    """Programs that ran or wanted to, averaged over the last minute; 0 when nobody says."""
    return float((system.read("/proc/loadavg") or "0").split()[0])


def parse(text: str, *, today: date) -> Measured | None:
    """Rates of a file's text with their date; None when they are too old or not ours."""
    from pydantic import TypeAdapter  # not needed for --help

    try:
        body = json.loads(text)
        age = today - date.fromisoformat(body["date"])
        found = {**body["rates"], "date": body["date"]}
        rates = TypeAdapter(Measured).validate_python(found, extra="forbid")
    except (ValueError, KeyError, TypeError):
        return None
    return rates if 0 <= age.days <= MAX_AGE_DAYS else None


def lasting(rates: Measured) -> dict[str, object]:
    """The rates that are facts of the machine: the disk's belongs to a folder, the pin wall to a boot,
    and what went wrong during a copy to that copy.
    """
    passing = dict.fromkeys(
        ("disk_read_bytes_per_s", "pin_limit_bytes", "h2d_replays", "h2d_throttle", "date")
    )
    return asdict(replace(rates, **passing))


def identity(hardware: Hardware, gpu: Gpu | None) -> dict[str, object]:
    """What the rates depend on and what stays the same from boot to boot."""
    return {
        "version": __version__,
        "gpu": gpu.uuid if gpu else None,
        "slot": gpu.address if gpu else None,
        "driver": hardware.driver.version,
        "cpu": hardware.cpu.model_name,
        "cores": hardware.cpu.usable_cores,
        "ram_gib": round(hardware.ram.total_bytes / GIB),
    }


def file_of(hardware: Hardware, gpu: Gpu | None, folder: Path) -> Path:
    """The file that holds, or would hold, the rates of this machine and card."""
    text = json.dumps(identity(hardware, gpu), sort_keys=True)
    return folder / f"rates-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def utc_today() -> date:
    """The date in UTC, as files have it."""
    return datetime.now(tz=UTC).date()
