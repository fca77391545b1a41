"""Another process on the GPU: "take" leaves next to nothing of its memory to others, "free" gives all back.

It says "ready" once it is on the GPU, and the MiB that are free after each command.
"""

from __future__ import annotations

import sys

import torch

SIZES = [1 << 30, 64 << 20, 10 << 20, 1 << 20]  # torch takes the last ones in segments of 2 MiB


def fill(held: list[torch.Tensor]) -> None:
    for size in SIZES:
        while True:
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                break


def say(word: str) -> None:
    sys.stdout.write(f"{word} {torch.cuda.mem_get_info()[0] >> 20}\n")
    sys.stdout.flush()


def main() -> None:
    held = [torch.empty(1, device="cuda")]
    say("ready")
    for line in sys.stdin:
        if line == "take\n":
            fill(held)
        else:
            held.clear()
            torch.cuda.empty_cache()
        say("done")


if __name__ == "__main__":
    main()
