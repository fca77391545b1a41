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
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from tiny import tokens
from tiny.batches import MAX_WIDTH, Source
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
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    shape = SMOKE if args.smoke else TINY
    path = args.out / "tokenizer.json"
    started = time.monotonic()
    wanted = 3000 if args.smoke else TOKENIZER_SAMPLES
    texts = (text for s in islice(samples(args.seed), wanted) for text in plain_texts(s))
    tokens.train(texts, path, shape.vocab)
    print(f"tokenizer of {shape.vocab} ids: {time.monotonic() - started:.0f} s", flush=True)
    report = train(args, shape, path)
    write_side_files(args.out, shape)
    rows = args.out.with_name(f"{args.out.name}-calibration.safetensors")
    write_calibration(rows, path, args.calibration_rows)
    (args.out / "training.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))
    return 0


def train(args: argparse.Namespace, shape: Shape, path: Path) -> dict[str, Any]:
    """Train and save the weights; the figures of the run."""
    import torch
    from tiny.greedy import cases
    from tiny.routing import Router
    from tiny.training import Limits, Recipe, Trainer, close

    tokenizer = Tokenizer(path)
    model = build(shape, args.seed).to(args.device)
    router = Router(model)
    router.skew(args.spread, args.seed)
    limits = Limits(args.seconds, args.steps)
    recipe = Recipe(
        limits, args.rate, args.repeat_weight, args.check_every_s, args.budget, args.compile
    )
    trainer = Trainer(model, router, recipe)
    pad = eos_ids(shape)[0]
    batches = Source(path, args.seed, pad, args.tokens, args.block).batches(args.processes)
    asked = cases(tokenizer, args.seed, args.checks, 96 if args.smoke else MAX_WIDTH)
    started = time.monotonic()
    trainer.run(batches, tokenizer, asked[: args.checks // 4])
    trained_s = time.monotonic() - started
    routing = trainer.routing(batches, pad, 1 if args.smoke else 8)
    close(batches)
    shares = trainer.accuracy(tokenizer, asked)
    save(model, args.out)
    for number, layer in enumerate(routing, 1):
        print(f"MoE layer {number}: {layer.effective:.1f} effective experts, top quarter "
              f"{layer.top_quarter_share:.2f}, repeat {layer.repeat_rate:.2f}, unused {layer.unused}")  # fmt: skip
    return {
        "seed": args.seed,
        "steps": trainer.steps,
        "tokens": trainer.tokens,
        "seconds": round(trained_s, 1),
        "command": " ".join(["scripts/train_tiny.py", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for n, p in model.named_parameters() if ".visual." not in n),
        "held_out": shares,
        "routing": [asdict(layer) for layer in routing],
    }


def build(shape: Shape, seed: int) -> Any:
    """A fresh model, its weights decided by the seed."""
    import torch
    from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration

    torch.manual_seed(seed)
    config = Glm5NextConfig(text_config=text_config(shape), vision_config=vision_config(shape))
    return Glm5NextForConditionalGeneration(config)


def save(model: Any, folder: Path) -> None:
    """Write the weights with the names of a checkpoint and the dtypes that exllamav3 accepts."""
    from safetensors.torch import load_file, save_file

    model.float().save_pretrained(folder)
    weights = saved(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


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
        if len(ids) >= rows * MAX_WIDTH:
            break
    save_file({"input_ids": torch.tensor(ids[: rows * MAX_WIDTH]).view(rows, MAX_WIDTH)}, out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the dense checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0, help="training time (600)")
    parser.add_argument("--steps", type=int, help="end after so many steps, if that is sooner")
    parser.add_argument("--tokens", type=int, default=32768, help="of a batch, padding included")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate (0.002)")
    parser.add_argument("--spread", type=float, default=0.15, help="of the routers' biases (0.15)")
    parser.add_argument(
        "--repeat-weight", type=float, default=0.02, help="of the routers' movement"
    )
    parser.add_argument("--check-every-s", type=float, default=150.0)
    parser.add_argument("--checks", type=int, default=512, help="held-out turns at the end")
    parser.add_argument("--calibration-rows", type=int, default=128)
    parser.add_argument("--processes", type=int, default=12, help="that make samples (12)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="compile the stream mixing")
    parser.add_argument(
        "--smoke", action="store_true", help="a few steps of a very small model, CPU"
    )
    args = parser.parse_args()
    args.block, args.budget = 2000, 160
    if args.smoke:
        args.device, args.processes, args.steps, args.checks = "cpu", 0, args.steps or 3, 4
        args.tokens, args.calibration_rows, args.block, args.budget = 1024, 8, 100, 4
    return args


if __name__ == "__main__":
    sys.exit(main())
