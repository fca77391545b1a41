"""Shared parts of the GPU benches: load stock or tiered models, forward in chunks, decode greedily."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for source_root in (ROOT, ROOT / "server", ROOT / "kernels"):
    sys.path.insert(0, str(source_root))

import torch  # noqa: E402

from glm53_kernels.cuda import CudaKernels  # noqa: E402
from glm53_server.engine.exl3_dummy import DummySpec, DummyValues, write_directory  # noqa: E402
from glm53_server.engine.exl3_model import LoadedModel, LoadOptions, load_model  # noqa: E402
from glm53ctl.bench.provenance import commit  # noqa: E402

TINY = ROOT / "reference" / "tiny"


def log(*parts: object) -> None:
    print(f"[{time.perf_counter() - START:7.1f}]", *parts, flush=True)


START = time.perf_counter()


def quiet(phase: str, done: int, total: int) -> None:
    del phase, done, total


def dummy_options(spec: DummySpec, into: Path, **kwargs: object) -> LoadOptions:
    tensors = write_directory(spec, into, TINY)
    return LoadOptions(directory=into, dummy=DummyValues(tensors), **kwargs)


def load(options: LoadOptions, *, tiered: bool) -> tuple[LoadedModel, CudaKernels | None]:
    kernels = CudaKernels() if tiered else None
    started = time.perf_counter()
    loaded = load_model(options, kernels, quiet)
    phases = {k: round(v, 2) for k, v in loaded.phase_s.items()}
    log(f"loaded {'tiered' if tiered else 'stock'} in {time.perf_counter() - started:.1f} s", phases,
        f"activation {loaded.activation_bytes / 2**20:.0f} MiB",
        f"vram {torch.cuda.memory_allocated() / 2**30:.2f} GiB")  # fmt: skip
    return loaded, kernels


@torch.inference_mode()
def forward_chunks(
    loaded: LoadedModel, ids: torch.Tensor, chunk: int, *, logits: bool = True
) -> torch.Tensor | None:
    """Logits of every position (or only time it) of ids [1, n], forwarded `chunk` tokens at a time."""
    span = -(-ids.shape[1] // 256) * 256
    states = [loaded.cache.get_new_state()]
    outputs = []
    try:
        for start in range(0, ids.shape[1], chunk):
            part = ids[:, start : start + chunk]
            params = {
                "attn_mode": "flash_attn", "cache": loaded.cache, "batch_shape": (1, span), "past_len": start,
                "recurrent_states": states,
            }  # fmt: skip
            if logits:
                outputs.append(loaded.model.forward(part, params).clone())
            else:
                loaded.model.prefill(part, params)
    finally:
        for state in states:
            loaded.cache.release_state(state)
    return torch.cat(outputs, dim=1) if logits else None


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(
        tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()
    ).hexdigest()[:16]


def generator_of(loaded: LoadedModel, max_batch: int, chunk: int):
    from exllamav3 import Generator

    return Generator(
        loaded.model, loaded.cache, loaded.tokenizer, max_batch_size=max_batch, max_chunk_size=chunk
    )


def greedy(
    generator, prompts: list[torch.Tensor], tokens: int, *, cancel_at: int | None = None, hold=None
):
    """Decode all prompts together; returns (ids per prompt, digest of every logits row, in order)."""
    from exllamav3 import GreedySampler, Job

    jobs = [
        Job(
            input_ids=p,
            max_new_tokens=tokens,
            sampler=GreedySampler(),
            identifier=i,
            return_logits=True,
        )
        for i, p in enumerate(prompts)
    ]
    generator.enqueue(jobs)
    ids: list[list[int]] = [[] for _ in prompts]
    rows: list[list[str]] = [[] for _ in prompts]
    while generator.num_remaining_jobs():
        if hold is not None:
            hold(generator)
        for result in generator.iterate():
            if result["stage"] == "error":
                raise result["error"]
            if result["stage"] != "streaming":
                continue
            i = result["identifier"]
            for part in (result, result.get("held", {})):
                if "token_ids" in part:
                    ids[i] += part["token_ids"].flatten().tolist()
                if "logits" in part:
                    rows[i] += [digest(row) for row in part["logits"][0]]
            if cancel_at is not None and i == 0 and len(ids[0]) >= cancel_at and not result["eos"]:
                generator.cancel(jobs[0])
                cancel_at = None
    return ids, rows


def machine() -> dict[str, object]:
    gpu = torch.cuda.get_device_properties(0)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.partition("\n")[0]  # a line per card, all the same
    memory = next(
        line
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal")
    )
    cpu = next(
        (x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")),
        "",
    )
    return {
        "gpu": gpu.name, "gpu_bytes": gpu.total_memory, "driver": driver, "torch": torch.__version__,
        "python": platform.python_version(), "ram_kib": int(memory.split()[1]), "cpu": cpu.split(":")[-1].strip(),
        "exllamav3": "1.5.1",
    }  # fmt: skip


def save(name: str, body: dict[str, object], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "schema": f"glm53ctl.bench.{name}/1", "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(),
        "command": " ".join(["python3", *sys.argv]), "machine": machine(), **body,
    }  # fmt: skip
    (out / f"{document['date']}-{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    log("saved", name)
