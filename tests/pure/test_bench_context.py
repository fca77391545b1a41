"""What `glm53ctl bench` records of the host while it measures, and what of it taints a result."""

from __future__ import annotations

import pytest
from recorded_machines import phase

from glm53ctl.bench import context


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"other_cpus": 2.0}, "other programs used 2.0 of 8"), ({"swap_bytes": 50 << 20}, "swapped"),
     ({"quota_throttled_ms": 900.0}, "quota"), ({"gpu": {"throttle_reasons": 0x20}}, "slowed down"),
     ({"gpu": {"pcie_link_gen_current": 1.0, "pcie_link_width_current": 16.0}}, "Gen1 x16, it can do Gen4")],
)  # fmt: skip
def test_what_disturbs_is_named(changed, word):
    assert context.taints([phase()], (4, 16)) == ()
    assert context.taints([phase(gpu={"throttle_reasons": 0x4})], (4, 16)) == ()  # its power cap
    [found] = context.taints([phase(**changed)], (4, 16))
    assert word in found


def test_nvidia_smi_and_readings_become_facts():
    line = "GPU-1, 1695, 9501, 64, 271.2, 280.00, 4, 16, 0x0000000000000004, 21300\n"
    gpu = context.parse_gpu(line)
    assert gpu is not None
    assert (gpu["power.limit"], gpu["clocks_throttle_reasons.active"]) == (280.0, 4.0)
    assert context.parse_gpu("No devices were found") is None
    assert context.parse_gpu(line.replace("271.2", "[N/A]"))["power.draw"] is None  # type: ignore[index]
    before = context.Reading(0.0, 100.0, 50.0, 0, 5.0, 1)
    after = context.Reading(10.0, 125.0, 60.0, 4096, 9.0, 1)
    facts = context.phase_facts(
        "panel", before, after, [gpu, {**gpu, "clocks_throttle_reasons.active": 32.0}]
    )
    assert (facts["other_cpus"], facts["swap_bytes"], facts["quota_throttled_ms"]) == (
        1.5,
        4096,
        4.0,
    )
    assert facts["gpu"]["throttle_reasons"] == 36
