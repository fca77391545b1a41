"""Random faults against a real supervisor with the scripted engine; prints a verdict, writes JSON.

    python bench/supervise_soak.py --faults 500 --seed 1

A fault passes when the supervisor's verdict is the right one and afterwards no orphan, no zombie and
no torn state file is found. At the end the instance must serve, its log must hold every verdict, and
`down` must leave nothing. Faults that need more than this host allows are skipped and say so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from soak_faults import FAULTS
from soak_world import FalseClock, MemoryCgroup, World, Wrong

from glm53ctl import client
from glm53ctl.bench import provenance
from glm53ctl.errors import Glm53Error
from glm53ctl.supervisor import logs
from glm53ctl.supervisor.state import Identity

RESULTS = Path(__file__).parent / "results"
_DISK_BYTES = 8 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=500, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(FAULTS), help="this fault only")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/)")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # so that what was started is stopped
    with tempfile.TemporaryDirectory(prefix="glm53-soak-") as name:
        folder = Path(name)
        world, skipped = build(folder)
        names = [fault for fault in given.only or FAULTS if fault not in skipped]
        try:
            report = soak(world, names, given.faults, random.Random(given.seed))
        finally:
            client.stop(world.instance, 0.0, force=True)
            world.observer.over.set()
            if world.cgroup is not None:
                world.cgroup.leave()
            if "full disk" not in skipped:
                subprocess.run(["umount", "-l", folder / "disk"], check=False)
    report |= {"seed": given.seed, "skipped": skipped, **environment()}
    out = given.out or RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-supervise-soak.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    show(report, out)
    return 0 if report["ok"] else 1


def build(folder: Path) -> tuple[World, dict[str, str]]:
    """The world, with what this host allows; and which faults it does not allow, and why."""
    skipped: dict[str, str] = {}
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        skipped["full disk"] = "may not mount a small tmpfs"
    world = World(disk)
    try:
        world.cgroup = MemoryCgroup()
    except OSError as err:
        skipped["out of memory"] = f"may not make a memory cgroup: {err.strerror}"
    if shutil.which("gcc"):
        world.clock = FalseClock(folder)
    else:
        skipped["clock step"] = "no C compiler for the false clock"
    world.observer.start()
    return world, skipped


def soak(world: World, names: list[str], faults: int, rng: random.Random) -> dict[str, Any]:
    weights = [FAULTS[name][1] for name in names]
    passed: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    seconds: dict[str, list[float]] = {}
    start = time.monotonic()
    for number in range(faults):
        name = names[number] if number < len(names) else rng.choices(names, weights)[0]
        began = time.monotonic()
        try:
            FAULTS[name][0](world, rng)
            world.check_invariants()
        except (Wrong, Glm53Error) as err:
            wrong.append({"number": number, "fault": name, "what": str(err)})
            print(f"WRONG  {number} {name}: {err}", flush=True)
            with suppress(Glm53Error):
                client.stop(world.instance, 0.0, force=True)
        else:
            passed[name] += 1
        seconds.setdefault(name, []).append(time.monotonic() - began)
        if (number + 1) % 50 == 0:
            print(f"{number + 1}/{faults} faults, {len(wrong)} wrong", flush=True)
    wrong += _last_checks(world)
    return {
        "schema": "glm53ctl.supervise-soak/1",
        "ok": not wrong,
        "faults": faults,
        "wrong": wrong,
        "passed": dict(sorted(passed.items())),
        "median_s": {name: round(statistics.median(took), 2) for name, took in seconds.items()},
        "wall_s": round(time.monotonic() - start, 1),
        "state_reads": world.observer.reads,
        "torn_state_reads": world.observer.torn,
    }


def _last_checks(world: World) -> list[dict[str, Any]]:
    """It must end serving, with its story in the log, and `down` must leave nothing."""
    found: list[str] = []
    record = world.serving()
    told = sum(" supervisor: start, plan" in line for line in _whole_log(world))
    if told != world.launches:
        found.append(f"{world.launches} supervisors started, the log knows of {told}")
    pids = [record[name]["pid"] for name in ("supervisor", "child")]
    client.stop(world.instance, 1.0)
    found += [f"pid {pid} lives after down" for pid in pids if Identity.of(pid)]
    return [{"number": None, "fault": "end", "what": what} for what in found]


def _whole_log(world: World) -> list[str]:
    return logs.tail(world.instance.log_path, 10**6)


def environment() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": provenance.commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
    }


def show(report: dict[str, Any], out: Path) -> None:
    for name, count in report["passed"].items():
        print(f"  {name:<24} {count:>4} passed   median {report['median_s'][name]:.2f} s")
    for name, why in report["skipped"].items():
        print(f"  {name:<24} skipped: {why}")
    print(
        f"{report['faults']} faults in {report['wall_s']:.0f} s, {len(report['wrong'])} wrong; "
        f"state.json read {report['state_reads']} times, torn {report['torn_state_reads']}"
    )
    print(f"verdict: {'ok' if report['ok'] else 'WRONG'}   {out}")


if __name__ == "__main__":
    sys.exit(main())
