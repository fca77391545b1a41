"""Quantise the dense tiny model to EXL3 with exllamav3's own converter, in the bits of the real checkpoint.

    PYTHONPATH=.:server:scripts python scripts/convert_tiny.py DENSE OUT [--work FOLDER] [--flat]

Needs exllamav3 1.5.1 and a CUDA device. Routed experts get 3 bits, dense layers 4, attention and shared
experts 5, the head 6; --flat gives everything but the head 3 bits, should the converter refuse the list
of widths. The calibration rows are those that train_tiny.py wrote beside DENSE.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiny.card import write_card

PREFIX = "model.language_model.layers"
HEAD_BITS = 6
ROWS, COLUMNS = 128, 768
_LINEAR_ATTENTION = ("qkv_proj", "o_proj")
_SPARSE_ATTENTION = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "indexer.wq_b")
_MLP = ("gate_proj", "up_proj", "down_proj")
_FILES = ("config.json", "generation_config.json", "model.safetensors", "processor_config.json",
          "quantization_config.json", "tokenizer.json", "tokenizer_config.json")  # fmt: skip


def widths(text: dict[str, Any]) -> dict[str, int]:
    """Bits of every linear layer that is quantised, by its name, from the text configuration."""
    return dict(_widths(text))


def _widths(text: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for index, kind in enumerate(text["layer_types"]):
        layer = f"{PREFIX}.{index}"
        linear = kind == "linear_attention"
        for name in _LINEAR_ATTENTION if linear else _SPARSE_ATTENTION:
            yield f"{layer}.self_attn.{name}", 5
        if text["mlp_layer_types"][index] == "dense":
            yield from ((f"{layer}.mlp.{name}", 4) for name in _MLP)
            continue
        yield from ((f"{layer}.mlp.shared_experts.{name}", 5) for name in _MLP)
        for expert in range(text["n_routed_experts"]):
            yield from ((f"{layer}.mlp.experts.{expert}.{name}", 3) for name in _MLP)


def write_widths(dense: Path, out: Path) -> None:
    """The converter's recipe file; it reads YAML, which JSON is."""
    config = json.loads((dense / "config.json").read_text(encoding="utf-8"))
    recipe = {"target_bpw": 3.3, "head_bits": HEAD_BITS, "tensors": widths(config["text_config"])}
    out.write_text(json.dumps(recipe, indent=1), encoding="utf-8")


def convert(dense: Path, out: Path, work: Path, *, flat: bool) -> None:
    """Run the converter. Its parts for draft heads and pictures are told that there are none."""
    from exllamav3.architecture.architectures import get_architectures
    from exllamav3.conversion.convert_model import main as run
    from exllamav3.conversion.convert_model import parser, prepare

    _text_only(get_architectures()["Glm5NextForConditionalGeneration"])
    calibration = dense.with_name(f"{dense.name}-calibration.safetensors")
    work.mkdir(parents=True, exist_ok=True)
    words = ["-i", dense, "-o", out, "-w", work, "-b", 3, "-hb", HEAD_BITS, "-cb", "mul1"]
    words += ["-cd", calibration, "-cr", ROWS, "-cc", COLUMNS]
    if not flat:
        write_widths(dense, work / "widths.yaml")
        words += ["-rcp", work / "widths.yaml"]
    settings, state, ready, complaint = prepare(parser.parse_args([str(word) for word in words]))
    if not ready:
        raise SystemExit(f"error: the converter refuses: {complaint}")
    run(settings, state)


def _text_only(architecture: dict[str, Any]) -> None:
    whole = architecture["config_class"]

    class TextOnly(whole):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            for part in ("mtp", "vision"):
                self.model_classes.pop(part, None)

    architecture["config_class"] = TextOnly


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dense", type=Path, help="folder that train_tiny.py wrote")
    parser.add_argument("out", type=Path, help="folder of the EXL3 checkpoint")
    parser.add_argument("--work", type=Path, help="scratch folder (OUT-work)")
    parser.add_argument("--flat", action="store_true", help="3 bits everywhere but in the head")
    args = parser.parse_args()
    work = args.work or args.out.with_name(f"{args.out.name}-work")
    convert(args.dense, args.out, work, flat=args.flat)
    report = args.out / "training.json"  # the converter copies every small file
    card = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    write_card(args.out, card, [name for name in _FILES if (args.out / name).is_file()])
    shutil.rmtree(work)
    total = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: {total / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
