"""One run of the default bench: measure the machine, score the panel, stream, sweep, judge.

The scripts do the measuring; this decides what to run and puts the parts into one result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from glm53ctl import __version__
from glm53ctl.bench import context, damage, provenance, scripts
from glm53ctl.bench import target as targets
from glm53ctl.bench.result import Facts, Judged, Machine, Result, Served
from glm53ctl.bench.target import Target
from glm53ctl.bench.verdict import Evidence, decide, panel_faults
from glm53ctl.checkpoint import FLASH, ModelFacts
from glm53ctl.hardware import Gpu, Hardware
from glm53ctl.plan import EngineName, Mode
from glm53ctl.predict import Prediction, cpu_bytes_per_token, predict
from glm53ctl.probes import machine, measure
from glm53ctl.probes.system import System

Say = Callable[[str], None]
SHOWN_TENSORS = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: prompt lengths, streams, repetitions, seconds of one stream."""

    prefill: tuple[int, ...]
    streams: tuple[int, ...] = (1, 2, 4)
    repetitions: int = 3
    answer_tokens: int = 128
    stream_s: float = 15.0
    long_prompt_tokens: int | None = None


SHORT_CPU = Sizes((128, 512), answer_tokens=32, stream_s=8.0)
SHORT_GPU = Sizes((2048, 8192))
QUICK = Sizes((64,), (1, 2), 2, answer_tokens=16, stream_s=3.0)
FULL_GPU = Sizes((8192, 16384, 32768, 65536), (1, 2, 3, 4), 3, 1024, 25.0, 32768)
FULL_CPU = Sizes((512, 2048, 8192), (1, 2, 3, 4), 3, 256, 25.0, 8192)


def short_sizes(target: Target) -> Sizes:
    """The default sizes: the whole run takes less than three minutes."""
    return SHORT_GPU if target.mode in {Mode.FAST, Mode.EXACT} else SHORT_CPU


def full_sizes(target: Target) -> Sizes:
    """Long prompts, long answers: about an hour with a GPU; on the CPU, where a prompt's cost grows
    with its square, a quarter of an hour."""
    return FULL_CPU if target.mode is Mode.CPU else FULL_GPU


@dataclass(slots=True)
class Bench:
    """One run over one target. `say` gets progress lines.

    A server that is gone has no verdict: then `run` raises NotRunning.
    """

    target: Target
    system: System
    sizes: Sizes
    say: Say
    panel_file: Path | None = None
    measure_machine: bool = True

    def draft(self, command: str) -> Result:
        """The result before anything is measured: what it is about."""
        hardware = machine.probe(self.system)
        info = targets.fetch(self.target, "/server_info") or {}
        return Result(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            command=command,
            seconds=0.0,
            machine=_machine(hardware, self._gpu(hardware)),
            served=_served(self.target, info),
            measured={},
            verdict=Judged("unfinished", "", ()),
            commit=provenance.commit(),
        )

    def run(self, draft: Result) -> Result:
        """Measure everything and judge it."""
        began = time.monotonic()
        hardware = machine.probe(self.system)
        gpu = self._gpu(hardware)
        if self.measure_machine:
            self.say("machine  link, memory, cores")
            hardware = measure.measure(self.system, hardware, gpu)
        recorder = context.Recorder(
            self.system,
            self.target.server_pid,
            gpu.uuid if gpu else None,
            lambda: targets.fetch(self.target, "/stats"),
        )
        panel = self._panel(recorder)
        faults = panel_faults(panel)
        stream = sweep = None
        if faults:
            self.say("quality failed: speed is not measured")
        else:
            stream = self._stream(recorder)
            sweep = self._sweep(recorder, draft)
        link = _max_link(gpu)
        taints = context.taints(recorder.phases, link)
        speed_phases = [one for one in recorder.phases if one["phase"] == "sweep"]
        prediction = self._prediction(hardware)
        found = decide(
            Evidence(
                mode=self.target.mode,
                panel=panel,
                damaged=self._damaged() if faults else (),
                stream=stream,
                sweep_error=(sweep or {}).get("error"),
                decode_tokens_per_s=_decode_rate(sweep),
                prediction=prediction,
                taints=context.taints(speed_phases, link),
            )
        )
        return replace(
            draft,
            seconds=round(time.monotonic() - began, 1),
            measured=asdict(hardware.measured),
            verdict=Judged(found.name, found.why, found.where),
            prediction=self._prediction_facts(prediction),
            panel=panel,
            stream=stream,
            sweep=sweep,
            phases=tuple(recorder.phases),
            samples=tuple(recorder.samples),
            taints=taints,
        )

    def _gpu(self, hardware: Hardware) -> Gpu | None:
        plan = self.target.plan
        wanted = plan.gpu.uuid if plan is not None and plan.gpu is not None else None
        return next((gpu for gpu in hardware.gpus if gpu.uuid == wanted), None)

    def _panel(self, recorder: context.Recorder) -> Facts | None:
        path = self.panel_file or self.target.panel()
        if path is None:
            return None
        self.say(f"panel    {path.name}")
        with recorder.phase("panel"):
            done = scripts.run(
                scripts.PANEL, [*self.target.flags(), "--panel", str(path)], self._detail
            )
        panel = cast("list[Facts]", json.loads(path.read_text(encoding="utf-8")))
        expected = sum(len(item["top20_ids"]) for item in panel)
        if done.document is None:
            targets.check_answers(self.target)
            return {"file": path.name, "error": done.complaint, "expected_positions": expected}
        return {"file": path.name, "expected_positions": expected, **done.document}

    def _stream(self, recorder: context.Recorder) -> Facts:
        self.say("stream   is text delivered evenly?")
        with recorder.phase("stream"):
            done = scripts.run(
                scripts.STREAM,
                [*self.target.flags(), "--seconds", str(self.sizes.stream_s)],
                self._detail,
            )
        if done.document is None:
            targets.check_answers(self.target)
        return done.document or {"pass": False, "endpoints": [], "error": done.complaint}

    def _sweep(self, recorder: context.Recorder, draft: Result) -> Facts | None:
        self.say("sweep    prefill and decode speed")
        sizes = self.sizes
        high = ["--high", str(sizes.long_prompt_tokens)] if sizes.long_prompt_tokens else []
        with recorder.phase("sweep"):
            done = scripts.run(
                scripts.SWEEP,
                [
                    *self.target.flags(),
                    *("--card", draft.machine.gpu or draft.machine.cpu),
                    *("--config", draft.served.plan or self.target.url),
                    *("--prefill", *map(str, sizes.prefill)),
                    *("--conc", *map(str, sizes.streams)),
                    *("--reps", str(sizes.repetitions), "--dec-reps", str(sizes.repetitions)),
                    *("--max-tokens", str(sizes.answer_tokens)),
                    *high,
                ],
                self._detail,
            )
        if done.code:
            self.say(f"sweep    failed: {done.complaint}")
            targets.check_answers(self.target)
            return {**(done.document or {}), "error": done.complaint}
        return done.document

    def _detail(self, line: str) -> None:
        self.say(f"         {line}")

    def _prediction(self, hardware: Hardware) -> Prediction | None:
        plan, model = self.target.plan, self._facts()
        if plan is None or model is None or plan.engine is EngineName.SCRIPTED:
            return None
        stats = targets.fetch(self.target, "/stats") or {}
        caches = cast("list[Facts]", stats.get("expert_cache") or [{}])
        gpu = self._gpu(hardware)
        if gpu is not None:
            hardware = replace(hardware, gpus=(gpu,))
        return predict(
            hardware,
            model,
            plan.mode,
            slots=int(caches[0].get("slots", 0)),
            threads=plan.cpu.threads,
        )

    def _prediction_facts(self, prediction: Prediction | None) -> Facts | None:
        model = self._facts()
        if prediction is None or model is None:
            return None
        on_cpu = prediction.mode is Mode.CPU
        per_token = cpu_bytes_per_token(model) if on_cpu else None
        return {**asdict(prediction), "mode": prediction.mode.value, "bytes_per_token": per_token}

    def _facts(self) -> ModelFacts | None:
        """Sizes of what is served; dummy weights of full size have those of GLM-5.3-Flash."""
        plan = self.target.plan
        if plan is None or plan.model.load_format == "checkpoint":
            return self.target.facts()
        return FLASH if plan.model.load_format == "dummy" else None

    def _damaged(self) -> tuple[str, ...]:
        checkpoint = self.target.checkpoint()
        found = damage.damaged_tensors(checkpoint) if checkpoint is not None else None
        if found is None:
            return ()
        if not found:
            return ("the checkpoint's bytes are right: the arithmetic is not",)
        rest = len(found) - SHOWN_TENSORS
        more = (f"and {rest} more tensors",) if rest > 0 else ()
        return (*(f"damaged: {name}" for name in found[:SHOWN_TENSORS]), *more)


def _decode_rate(sweep: Facts | None) -> float | None:
    decode = cast("Facts", (sweep or {}).get("decode") or {})
    return decode["C1"]["aggregate"]["median"] if "C1" in decode else None


def _max_link(gpu: Gpu | None) -> tuple[int, int] | None:
    link = gpu.link if gpu else None
    if link is None or link.max_generation is None or link.max_width is None:
        return None
    return link.max_generation, link.width or link.max_width


def _machine(hardware: Hardware, gpu: Gpu | None) -> Machine:
    link = gpu.link if gpu else None
    return Machine(
        cpu=hardware.cpu.model_name,
        cores=hardware.cpu.usable_cores,
        ram_bytes=hardware.ram.total_bytes,
        system=f"{hardware.host.system}, Linux {hardware.host.kernel}",
        gpu=gpu.name if gpu else None,
        driver=hardware.driver.version,
        power_limit_w=gpu.power_limit_w if gpu else None,
        link=f"Gen{link.max_generation or link.generation} x{link.width}" if link else None,
    )


def _served(target: Target, info: dict[str, Any]) -> Served:
    plan = target.plan
    return Served(
        url=target.url,
        mode=plan.mode.value if plan else info.get("mode"),
        engine=plan.engine.value if plan else info.get("engine"),
        model=plan.model.served_name if plan else info.get("model"),
        plan=plan.fingerprint() if plan else info.get("plan"),
        vram_limit_bytes=plan.gpu.vram_limit_bytes if plan and plan.gpu else None,
    )
