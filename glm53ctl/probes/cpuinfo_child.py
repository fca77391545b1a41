"""Brand and flags of the CPU as py-cpuinfo finds them (lscpu, dmesg, CPUID). Prints one JSON object.

In a process of its own, because it starts programs and runs machine code, and takes a second or more.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    import cpuinfo  # pyright: ignore[reportMissingTypeStubs]

    found: dict[str, Any] = cpuinfo.get_cpu_info()
    answer = {"brand": found.get("brand_raw", ""), "flags": found.get("flags", [])}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
