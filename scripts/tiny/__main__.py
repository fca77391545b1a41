"""Write a corpus as text, or show some of it.

usage: PYTHONPATH=scripts python -m tiny [--seed 1] [--split train] [--megabytes 40] [--out FILE]

The trainer makes its own samples in memory; this is for reading them and for the tokenizer of others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .corpus import samples
from .rendering import text
from .samples import Split


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))
    parser.add_argument("--megabytes", type=float, default=0.02, help="how much text (0.02)")
    parser.add_argument("--out", type=Path, help="the file to write, else the standard output")
    args = parser.parse_args()
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
