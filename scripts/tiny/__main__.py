"""Write a corpus as text, or show some of it.

usage: PYTHONPATH=.:server:scripts python -m tiny [--seed 1] [--split train] [--megabytes 40] [--out FILE]
       PYTHONPATH=.:server:scripts python -m tiny --prompts 12 --out FILE.json

The trainer makes its own samples in memory; this is for reading them. --prompts writes a JSON list of
held-out prompts, no two of a kind while there are others, for bench/record_panel.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from glm53_server.chat.template import prompt_text

from .corpus import samples
from .rendering import prompt, text
from .samples import Split


def prompts(seed: int, wanted: int) -> list[str]:
    """Held-out prompts as raw text, the kinds in turn."""
    found: list[str] = []
    taken: Counter[str] = Counter()
    kinds = 14
    for sample in samples(seed, Split.HELD_OUT):
        if taken[sample.task] <= len(found) // kinds:
            taken[sample.task] += 1
            found.append(prompt_text(prompt(sample, sample.live_turns()[-1])))
        if len(found) == wanted:
            break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))
    parser.add_argument("--megabytes", type=float, default=0.02, help="how much text (0.02)")
    parser.add_argument("--out", type=Path, help="the file to write, else the standard output")
    parser.add_argument("--prompts", type=int, help="write so many held-out prompts as JSON")
    args = parser.parse_args()
    if args.prompts:
        found = json.dumps(prompts(args.seed, args.prompts), indent=1) + "\n"
        args.out.write_text(found, encoding="utf-8") if args.out else sys.stdout.write(found)
        return 0
    budget_bytes, made = args.megabytes * 1e6, 0
    with args.out.open("w", encoding="utf-8") if args.out else sys.stdout as file:
        for sample in samples(args.seed, args.split):
            written = text(sample) + "\n\n"
            file.write(written)
            made += len(written.encode())
            if made >= budget_bytes:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
