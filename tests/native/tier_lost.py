"""Child of test_tier_faults: loses a worker in the middle of a job and must still end by itself.

usage: tier_lost.py LIBRARY|- ; reports what it saw as JSON on its last line.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference"))

import exl3_oracle as oracle
import numpy as np
from native_cases import Choice
from tier_cases import running

from glm53_kernels import CpuKernels

rng = np.random.default_rng(5)
experts = [oracle.random_expert(rng, 256, 384, (3, 3, 3)) for _ in range(4)]
library = None if sys.argv[1] == "-" else Path(sys.argv[1])
kernels = CpuKernels(threads=3, library=library)
report: dict[str, object] = {}
with running(kernels, [experts], watchdog_ms=500) as open_:
    x = rng.normal(size=(2, 256)).astype(np.float32)
    choice = Choice.of(*((e, r, 0.2) for e in range(4) for r in range(2)))
    expected = open_.expected(0, choice, x)
    report["same_before"] = bool((open_.run(1, 0, choice, x) == expected).all())
    kernels.lose_worker(in_job=True)
    sequence = 1
    while not open_.tier.stats().aborted:  # until the worker took part, and was lost with its part
        sequence += 1
        open_.box.post(sequence, 0, choice, x)
        report["released_s"] = open_.box.wait(sequence)
        assert sequence < 10_000, "no worker ever took part"
    report["computed"] = open_.tier.stats().jobs == sequence - 1
    report["came_back"] = open_.tier.reset()
    open_.box.post(sequence + 1, 0, choice, x)
    report["next_s"] = open_.box.wait(sequence + 1)
    report["timeouts"] = open_.tier.stats().timeouts
    started = time.monotonic()
    report["ended"] = open_.tier.close()
    report["close_s"] = time.monotonic() - started
kernels.close()
sys.stdout.write(json.dumps(report) + "\n")
