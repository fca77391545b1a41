"""Train the tiny model on the corpus this project makes, and save a dense checkpoint for scripts/convert_tiny.py.

    PYTHONPATH=.:server:scripts python scripts/train_tiny.py --out FOLDER [--seconds 600] [--compile]

On a CUDA device: bfloat16 with float32 weights. --smoke trains a much smaller model for a few steps on
the CPU, to show that everything fits together. docs/tiny-model.md has the whole sequence.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

from tiny import tokens
from tiny.batches import WIDTH, Source
from tiny.corpus import samples
from tiny.rendering import plain_texts
from tiny.samples import Split
from tiny.shape import (
    SMOKE,
    TINY,
    Shape,
    eos_ids,
    saved,
    text_config,
    vision_config,
    write_side_files,
)

from glm53_server.tokenizer import Tokenizer

TOKENIZER_SAMPLES = 40_000


def main() -> int:
    started = time.monotonic()
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    imports = Thread(
        target=_import, args=(args.device, args.compile)
    )  # most of a minute from a cold disk
    imports.start()
    shape = SMOKE if args.smoke else TINY
    path = args.out / "tokenizer.json"
    wanted = 3000 if args.smoke else TOKENIZER_SAMPLES
    texts = (text for s in islice(samples(args.seed), wanted) for text in plain_texts(s))
    tokens.train(texts, path, shape.vocab)
    print(f"tokenizer of {shape.vocab} ids: {time.monotonic() - started:.0f} s", flush=True)
    imports.join()
    print(f"libraries ready: {time.monotonic() - started:.0f} s", flush=True)
    rows = args.out.with_name(f"{args.out.name}-calibration.safetensors")
    write_calibration(rows, path, args.calibration_rows)
    train(args, shape, path, started)
    return 0


def _import(device: str, compiles: bool) -> None:
    """Load the large libraries and wake the device, beside other work."""
    import torch

    import_module("transformers.models.glm5_next.modeling_glm5_next")
    torch.zeros(1, device=device)
    if compiles:
        import_module("torch._inductor.compile_fx")


def train(args: argparse.Namespace, shape: Shape, path: Path, started: float) -> None:
    """Train until --seconds after `started`. The checkpoint and its report are written at every check,
    at the end, and once more with what is measured after it.
    """
    from tiny.greedy import cases
    from tiny.routing import Router
    from tiny.training import Limits, Recipe, Trainer, close

    tokenizer, pad = Tokenizer(path), eos_ids(shape)[0]
    source = Source(path, args.seed, pad, max(1, args.tokens // WIDTH), args.block)
    batches = source.batches(args.processes)
    first = ThreadPoolExecutor(1).submit(next, batches)  # its processes start beside the model
    model = build(shape, args.seed).to(args.device)
    router = Router(model)
    router.skew(args.spread, args.seed)
    limits = Limits(args.seconds, args.steps)
    recipe = Recipe(limits, args.rate, args.repeat_weight, args.check_every_s, args.budget)
    trainer = Trainer(model, router, recipe)
    asked = cases(tokenizer, args.seed, args.checks, 96 if args.smoke else WIDTH)
    report = _report(args, model)

    def keep(**more: Any) -> None:
        report.update(steps=trainer.steps, tokens=trainer.tokens, loss=trainer.loss_now, **more)
        report["seconds"] = round(time.monotonic() - started, 1)
        save(model, args.out, shape, report)

    def check() -> None:
        keep(held_out=trainer.accuracy(tokenizer, asked[: args.checks // 4]))
        print(f"{report['seconds']} s: held-out {report['held_out']}", flush=True)

    print(f"model ready: {time.monotonic() - started:.0f} s", flush=True)
    _hasten(trainer, first.result(), args)
    try:
        trainer.run(batches, started, check)
    finally:
        keep()
    print(f"trained: {report['seconds']} s", flush=True)
    routing = trainer.routing(batches, 1 if args.smoke else 8)
    close(batches)
    _tell(routing)
    seconds = report["seconds"]
    report.update(
        routing=[asdict(layer) for layer in routing], held_out=trainer.accuracy(tokenizer, asked)
    )
    report["seconds"] = seconds
    write_report(args.out, report)
    print(json.dumps(report, indent=1), flush=True)


def _hasten(trainer: Any, batch: Any, args: argparse.Namespace) -> None:
    """Compile and record what the arguments ask for; `batch` is tried, not learned."""
    if args.compile_cache and args.compile_cache.exists():
        print(f"{args.compile_cache}: {_compiled_before(args.compile_cache)}", flush=True)
    if args.compile:
        trainer.compile(batch, args.seconds / 6)
    if args.graph and args.device == "cuda":
        trainer.record(batch)


def _compiled_before(cache: Path) -> str:
    """Take in pieces that another run compiled; returns what came of it."""
    import torch

    try:
        found = torch.compiler.load_cache_artifacts(cache.read_bytes())
    except Exception as err:  # noqa: BLE001 - without it, compiling only takes longer
        return f"of no use: {type(err).__name__}: {err}"
    return "of no use: no compiled pieces are in it" if found is None else "taken"


def _tell(routing: list[Any]) -> None:
    for number, layer in enumerate(routing, 1):
        print(f"MoE layer {number}: {layer.effective:.1f} effective experts, top quarter "
              f"{layer.top_quarter_share:.2f}, repeat {layer.repeat_rate:.2f}, unused {layer.unused}")  # fmt: skip


def _report(args: argparse.Namespace, model: Any) -> dict[str, Any]:
    """What is known before the first step."""
    import torch

    return {
        "seed": args.seed,
        "command": " ".join(["scripts/train_tiny.py", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for n, p in model.named_parameters() if ".visual." not in n),
        "held_out": {},
        "routing": [],
    }


def build(shape: Shape, seed: int) -> Any:
    """A fresh model, its weights decided by the seed."""
    import torch
    from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration

    torch.manual_seed(seed)
    config = Glm5NextConfig(text_config=text_config(shape), vision_config=vision_config(shape))
    return Glm5NextForConditionalGeneration(config)


def save(model: Any, folder: Path, shape: Shape, report: dict[str, Any]) -> None:
    """Write a whole checkpoint: the weights with the names of a checkpoint and the dtypes that exllamav3
    accepts, the files beside them, and the report.
    """
    from safetensors.torch import load_file, save_file

    new = folder / "new"
    model.save_pretrained(new)
    weights = saved(load_file(new / "model.safetensors"))
    save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
    write_side_files(new, shape)
    write_report(new, report)
    for path in new.iterdir():
        path.replace(folder / path.name)
    new.rmdir()


def write_report(folder: Path, report: dict[str, Any]) -> None:
    (folder / "training.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def write_calibration(out: Path, tokenizer: Path, rows: int) -> None:
    """Conversations end to end as rows of ids for the converter: its errors are weighed by what is served.

    Beside the checkpoint, not in it: exllamav3 reads every safetensors file of a folder. All rows are of
    one width, so that its kernels are tuned once.
    """
    import torch
    from safetensors.torch import save_file
    from tiny.rendering import encode

    encoder = Tokenizer(tokenizer)
    ids: list[int] = []
    for sample in samples(0, Split.TRAIN):
        ids += encode(sample, encoder)[0]
        if len(ids) >= rows * WIDTH:
            break
    save_file({"input_ids": torch.tensor(ids[: rows * WIDTH]).view(rows, WIDTH)}, out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the dense checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="from the start of this program to the end of training (600)",
    )
    parser.add_argument("--steps", type=int, help="end after so many steps, if that is sooner")
    parser.add_argument("--tokens", type=int, default=24576, help="of a batch, gaps included")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate (0.002)")
    parser.add_argument("--spread", type=float, default=0.15, help="of the routers' biases (0.15)")
    parser.add_argument(
        "--repeat-weight", type=float, default=0.02, help="of the routers' movement"
    )
    parser.add_argument("--check-every-s", type=float, default=150.0)
    parser.add_argument("--checks", type=int, default=384, help="held-out turns at the end")
    parser.add_argument("--calibration-rows", type=int, default=128)
    parser.add_argument("--processes", type=int, default=6, help="that make samples (6)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="compile what compiles")
    parser.add_argument(
        "--compile-cache", type=Path, help="what torch.compiler.save_cache_artifacts returned"
    )
    parser.add_argument(
        "--graph", action=argparse.BooleanOptionalAction, default=True, help="record the step (yes)"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a few steps of a very small model, CPU"
    )
    args = parser.parse_args()
    args.block, args.budget = 4000, 160
    if args.smoke:
        args.device, args.processes, args.steps, args.checks = "cpu", 0, args.steps or 3, 4
        args.tokens, args.calibration_rows, args.block, args.budget = 2 * WIDTH, 8, 200, 4
    return args


if __name__ == "__main__":
    sys.exit(main())
