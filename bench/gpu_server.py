"""The server with dummy weights at full geometry, measured over HTTP as `glm53ctl bench` does it. Needs one CUDA GPU.

usage: gpu_server.py [--mode exact|fast] [--vram-gib 24] [--layers 45] [--out DIR]

Starts a server of its own from a plan, as the supervisor would, benches it and stops it. Random weights
have no quality, so no panel is scored. Every id of the dummy vocabulary gets a text of its own, so that
streams have characters to time. Writes DATE-server-MODE.json (`glm53ctl bench report` draws it) and
stats-MODE.json: counters before and after, the server's memory, its exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for source_root in (ROOT, ROOT / "server", ROOT / "kernels"):
    sys.path.insert(0, str(source_root))

from glm53ctl import plan as plans  # noqa: E402
from glm53ctl.bench import target as targets  # noqa: E402
from glm53ctl.bench.run import Bench, Sizes  # noqa: E402
from glm53ctl.bench.target import Target  # noqa: E402
from glm53ctl.env import Environ, Settings  # noqa: E402
from glm53ctl.plan import Plan  # noqa: E402
from glm53ctl.probes import machine  # noqa: E402
from glm53ctl.probes.system import this_system  # noqa: E402

TINY = ROOT / "reference" / "tiny"
GIB = 1 << 30
VOCABULARY = 154_880
STOP_S = 60.0
MEMORY_LINES = ("VmHWM", "VmRSS", "RssAnon", "VmLck")
STORY = "<think></think>" + "The keeper lit the lamp and read the map again. " * 400


def log(*parts: object) -> None:
    print(f"[{time.perf_counter() - START:7.1f}]", *parts, flush=True)


START = time.perf_counter()


def write_tokenizer(into: Path) -> None:
    """The tiny checkpoint's tokenizer, with a word for every id that it lacks."""
    shutil.copytree(TINY, into, ignore=shutil.ignore_patterns("*.safetensors*"))
    path = into / "tokenizer.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = body["model"]["vocab"]
    used = {*vocabulary.values(), *(one["id"] for one in body["added_tokens"])}
    vocabulary |= {f"\u0120w{id_}": id_ for id_ in range(VOCABULARY) if id_ not in used}
    path.write_text(json.dumps(body, ensure_ascii=False), encoding="utf-8")


def make_plan(args: argparse.Namespace, folder: Path) -> Plan:
    """A plan for this machine, with the settings' defaults as `glm53ctl up` has them.

    Mode "scripted" is for a trial without a GPU.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    cpu = plans.CpuPlan(args.threads or max(1, len(cpus) - 2), cpus)
    listen = plans.ListenPlan(port=free_port())
    if args.mode == "scripted":
        model = plans.ModelPlan(str(TINY), "scripted", 32768)
        script = plans.ScriptPlan(text=STORY, tokens_per_s=100.0)
        return Plan(plans.Mode.CPU, plans.EngineName.SCRIPTED, model, listen, cpu, script=script)
    write_tokenizer(folder / "tokenizer")
    load_format = "dummy" if args.layers == 45 else f"dummy:layers={args.layers}"
    model = plans.ModelPlan(str(folder / "tokenizer"), f"dummy-{args.layers}", 32768, load_format)
    gpus = machine.probe(this_system(Environ.current())).gpus
    defaults = Settings()
    gpu = plans.GpuPlan(
        gpus[0].uuid if gpus else "none", gpus[0].name if gpus else "none", reserve_bytes=GIB,
        elastic_bytes=defaults.vram_elastic_bytes, stage_bytes=defaults.vram_stage_bytes,
        vram_limit_bytes=int(args.vram_gib * GIB), lookahead_experts=args.lookahead,
    )  # fmt: skip
    limits = plans.LimitsPlan(max_batch=4, cache_tokens=36864, chunk_tokens=args.chunk)
    tier = plans.CpuTierPlan() if args.mode == "fast" else None
    return Plan(
        plans.Mode(args.mode), plans.EngineName.EXL3, model, listen, cpu, limits, gpu=gpu, cpu_tier=tier,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def serving(
    plan: Plan, folder: Path, args: argparse.Namespace
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that answers; ended by SIGTERM afterwards."""
    path = folder / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    paths = [
        str(ROOT),
        str(ROOT / "server"),
        str(ROOT / "kernels"),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    line = [sys.executable, "-m", "glm53_server", "--plan", str(path), "--drain-s", "5",
            "--parent-pid", str(os.getpid())]  # fmt: skip
    with (args.out / f"server-{args.mode}.log").open("wb") as said:
        process = subprocess.Popen(line, env=environment, stdout=said, stderr=said)
    try:
        wait_ready(process, plan, args.ready_s)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log("the server did not stop: killed")
            process.kill()
            process.wait()
        log("server exit", process.returncode)


def wait_ready(process: subprocess.Popen[bytes], plan: Plan, seconds: float) -> None:
    target, until = Target(plan.url), time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}; see its log")
        if (targets.fetch(target, "/health", timeout_s=2.0) or {}).get("ok"):
            log("ready")
            return
        time.sleep(0.5)
    raise SystemExit(f"the server was not ready within {seconds:.0f} s; see its log")


def memory_of(pid: int) -> dict[str, int]:
    """Bytes by name, from /proc; VmHWM is the peak."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    found = (line.split() for line in lines if line.partition(":")[0] in MEMORY_LINES)
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in found}


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    defaults = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=("exact", "fast", "scripted"), default="exact")
    parser.add_argument("--vram-gib", type=float, default=24.0)
    parser.add_argument("--layers", type=int, default=45)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--threads", type=int, help="of the CPU tier and of loading (all but two)")
    parser.add_argument("--lookahead", type=int, default=defaults.lookahead_experts)
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 2048, 8192])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, default=96, help="per answer")
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--stream-s", type=float, default=8.0)
    parser.add_argument("--ready-s", type=float, default=300.0, help="longest load")
    parser.add_argument(
        "--no-measure", action="store_true", help="do not measure the machine first"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    return parser.parse_args(words)


def main() -> int:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        plan = make_plan(args, Path(name))
        with serving(plan, Path(name), args) as process:
            stats = measure(args, plan, process.pid)
        stats["exit_code"] = process.returncode
    (args.out / f"stats-{args.mode}.json").write_text(json.dumps(stats, indent=1) + "\n")
    return process.returncode


def measure(args: argparse.Namespace, plan: Plan, pid: int) -> dict[str, Any]:
    """Bench the running server and save the result; returns what the result has no place for."""
    target = Target(plan.url, None, plan, pid)
    stats: dict[str, Any] = {
        "info": targets.fetch(target, "/server_info"), "before": targets.fetch(target, "/stats"),
    }  # fmt: skip
    sizes = Sizes(
        tuple(args.prefill), tuple(args.streams), args.reps, args.tokens, args.stream_s
    )  # fmt: skip
    system = this_system(Environ.current())
    bench = Bench(target, system, sizes, log, measure_machine=not args.no_measure)
    result = bench.run(bench.draft(shlex.join(["python3", *sys.argv])))
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    path = args.out / f"{day}-server-{args.mode}.json"
    path.write_text(result.to_json(), encoding="utf-8")
    log("saved", path.name, result.verdict.name, result.verdict.why)
    stats |= {"after": targets.fetch(target, "/stats"), "memory_bytes": memory_of(pid)}
    log("memory", stats["memory_bytes"])
    return stats


if __name__ == "__main__":
    sys.exit(main())
