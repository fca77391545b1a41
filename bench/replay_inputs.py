"""What replay_policies.py takes: a routing trace and numbers that a replay can use, or one line why not."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from tokenize import TokenError

import numpy as np

from glm53ctl.checkpoint import FLASH

MOST_STEPS = 16_000  # a pick counts 2 ** (step / 16) in the shortest half-life: floats end there
LEAST_STEPS = 6  # of the synthetic trace: four streams get a third, in two halves


class Refused(Exception):
    """What cannot be replayed; its text is one line for the user."""


def read_trace(path: Path, streams_known: Collection[int]) -> np.ndarray:
    """Int [steps, layers, streams, picks] of a .npy file. Raises Refused naming the file and what is wrong."""
    try:
        with path.open("rb") as file, np.errstate(all="ignore"):
            found = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as err:
        raise Refused(f"cannot read {path}: {err.strerror or 'it is damaged'}") from err
    except (ValueError, ArithmeticError, MemoryError, SyntaxError, TypeError, TokenError) as err:
        raise Refused(f"{path} is not a .npy file of numbers, or a damaged one") from err
    why = fault(found, streams_known)
    if why is not None:
        raise Refused(f"{path}: {why}")
    return found


def fault(trace: np.ndarray, streams_known: Collection[int]) -> str | None:
    """Why this array is no trace of picks of the model; None for one."""
    if trace.dtype.kind not in "iu":
        return f"picks are {trace.dtype}, must be integers"
    if trace.ndim != 4 or trace.size == 0:
        shape = "x".join(str(size) for size in trace.shape) or "one number"
        return f"its shape is {shape}, must be steps x layers x streams x picks, none of them 0"
    steps, layers, streams, picks = trace.shape
    if steps > MOST_STEPS or layers > FLASH.moe_layers or picks > FLASH.experts:
        return (
            f"{steps} steps, {layers} layers, {picks} picks are too many: "
            f"at most {MOST_STEPS}, {FLASH.moe_layers}, {FLASH.experts}"
        )
    if streams not in streams_known:
        known = ", ".join(str(count) for count in sorted(streams_known))
        return f"{streams} streams: what a step takes besides experts is known for {known}"
    low, high = int(trace.min()), int(trace.max())
    if low < 0 or high >= FLASH.experts:
        return f"picks go from {low} to {high}, experts from 0 to {FLASH.experts - 1}"
    return None


def check_numbers(args: argparse.Namespace, arms: Collection[str]) -> None:
    """Raises Refused for arguments that no replay can run with."""
    unknown = [name for name in args.only if name not in arms]
    if unknown or not args.only:
        raise Refused(f"--only {', '.join(unknown) or 'names none'}: known are {'; '.join(arms)}")
    if not LEAST_STEPS <= args.steps <= MOST_STEPS:
        raise Refused(f"--steps {args.steps}: must be {LEAST_STEPS} to {MOST_STEPS}")
    if not 0 <= args.overlap <= 1:
        raise Refused(f"--overlap {args.overlap}: must be 0 to 1")
    if not 1 <= args.slots <= FLASH.moe_layers * FLASH.experts:
        raise Refused(f"--slots {args.slots}: must be 1 to {FLASH.moe_layers * FLASH.experts}")
    if not 1 <= args.workers <= 256:
        raise Refused(f"--workers {args.workers}: must be 1 to 256")
    if not 0 <= args.seed < 1 << 63:
        raise Refused(f"--seed {args.seed}: must be 0 to 2**63 - 1")
