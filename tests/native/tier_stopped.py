"""Child of test_cpu_tier: says when its job is posted, is stopped and continued, reports as JSON."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference"))

import exl3_oracle as oracle
import numpy as np
from tier_cases import running, slow_job

from glm53_kernels import CpuKernels

rng = np.random.default_rng(5)
experts = [oracle.random_expert(rng, 1024, 1024, (3, 3, 3))] * 256
library = Path(sys.argv[1]) if len(sys.argv) > 1 else None
with running(CpuKernels(isa="scalar", library=library), [experts], watchdog_ms=2000) as open_:
    x = rng.normal(size=(1, 1024)).astype(np.float32)
    choice = slow_job(open_, 0.3)
    expected = open_.expected(0, choice, x)
    open_.box.post(1, 0, choice, x)
    sys.stdout.write("posted\n")
    sys.stdout.flush()
    open_.box.wait(1)
    stats = open_.tier.stats()
    same = bool((open_.box.out(1) == expected).all())
    report = {"timeouts": stats.timeouts, "aborted": stats.aborted, "same": same}
    sys.stdout.write(json.dumps(report))
