"""CPU, NUMA and virtual machine cases by their ids, each on a recorded machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from recorded_machines import AVX2, AVX512, gpu, put, record

from glm53ctl import choose, doctor
from glm53ctl.checks.base import Finding, Status
from glm53ctl.cpulist import format_cpulist, parse_cpulist
from glm53ctl.env import Environ, Settings
from glm53ctl.errors import NoFit, UsageError
from glm53ctl.layout import cpu_layout
from glm53ctl.probes import cpu, machine
from glm53ctl.probes.system import RecordedSystem, System


def answers(system, **flags) -> dict[str, Finding]:
    quick = flags.pop("quick", True)
    report = doctor.examine(choose.PlanOptions(**flags), system, quick=quick)
    return {check.id: check.finding for check in report.checks}


def pool(system) -> int:
    return cpu_layout(cpu.probe(system), Settings(), feeds_gpu=True).threads


def test_T090_only_performance_cores_compute(tmp_path):
    system = record(tmp_path, cores=8, smt=True, e_cores=16, model_name="i9-13900K")
    layout = cpu_layout(cpu.probe(system), Settings(), feeds_gpu=True)
    assert layout.threads == 7
    assert set(layout.cpus) <= set(range(0, 16, 2))
    assert "8 P + 16 E cores" in answers(system)["CPU-001"].observed


def test_T091_affinity_and_quota_limit_alike(tmp_path):
    pinned = record(tmp_path / "a", cores=32, smt=False, allowed="0-3")
    assert cpu.probe(pinned).usable_cores == 4
    assert "limited by cpuset 0-3" in answers(pinned)["CPU-001"].observed
    throttled = record(tmp_path / "b", cores=32, smt=False)
    put(throttled.root, "/proc/self/cgroup", "0::/app\n")
    put(throttled.root, "/sys/fs/cgroup/cgroup.controllers", "cpu\n")
    put(throttled.root, "/sys/fs/cgroup/app/cpu.max", "400000 100000\n")
    assert cpu.probe(throttled).usable_cores == 4
    found = answers(throttled)["CPU-001"].observed
    assert "4 usable, limited by CFS quota (4 CPUs)" in found


def test_a_fractional_quota_rounds_down_and_v1_quotas_count(tmp_path):
    system = record(tmp_path, cores=96, smt=False)
    put(tmp_path, "/proc/self/cgroup", "3:cpu,cpuacct:/pod\n")
    put(tmp_path, "/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "765000\n")
    put(tmp_path, "/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n")
    assert cpu.probe(system).usable_cores == 7


def test_T092_siblings_inside_the_mask_are_one_core(tmp_path):
    system = record(tmp_path, cores=16, smt=True, allowed="0-7")
    assert cpu.probe(system).usable_cores == 4


def test_T093_without_smt_nothing_is_halved(tmp_path):
    system = record(tmp_path, cores=8, smt=False)
    assert cpu.probe(system).usable_cores == 8


def test_a_mask_with_one_sibling_of_each_core_keeps_all_cores(tmp_path):
    system = record(tmp_path, cores=4, smt=True, allowed="1,3,5,7")
    assert cpu.probe(system).performance == (1, 3, 5, 7)


def test_T094_a_memory_only_node_parses(tmp_path):
    system = record(tmp_path, cores=16)
    put(tmp_path, "/sys/devices/system/node/node1/cpulist", "\n")
    put(tmp_path, "/sys/devices/system/node/nodes_extra/cpulist", "0\n")
    nodes = cpu.probe(system).nodes
    assert [(node.index, bool(node.cpus)) for node in nodes] == [(0, True), (1, False)]
    assert answers(system)["CPU-005"].observed == "1 NUMA node, 1 memory-only"


def test_T096_numa_node_minus_one_is_unknown_and_quiet(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    put(tmp_path, "/sys/bus/pci/devices/0000:01:00.0/numa_node", "-1\n")
    assert machine.probe(system).gpus[0].numa_node is None
    assert answers(system)["CPU-005"].observed == "1 NUMA node"


@pytest.mark.parametrize(
    ("case", "name", "flags"),
    [
        ("T097", "Common KVM processor", "fpu sse2 hypervisor"),
        ("T098", "QEMU Virtual CPU version 2.5+", "fpu sse2 sse4_2 aes hypervisor"),
    ],
)
def test_T097_T098_a_masked_cpu_fails_with_the_hypervisors_fix(tmp_path, case, name, flags):
    system = record(tmp_path, model_name=name, flags=flags, gpus=[gpu()])
    report = doctor.examine(choose.PlanOptions(), system)
    found = {check.id: check.finding for check in report.checks}["CPU-002"]
    assert found.status is Status.FAIL
    assert "masked by the hypervisor" in found.observed
    assert found.fix is not None
    assert "x86-64-v3" in found.fix.text
    assert "qm set" in found.fix.commands[0]
    assert report.exit_code() == 4
    with pytest.raises(NoFit, match="masked by the hypervisor"):
        choose.choose_plan(choose.PlanOptions(), system=system)


def test_T100_a_self_test_that_dies_shows_both_facts(tmp_path):
    measured = {"tier": {"problem": "exit code -4", "code": -4}}
    system = record(tmp_path, flags=AVX512, gpus=[gpu()], measured=measured)
    found = answers(system, quick=False)
    assert found["CPU-003"].status is Status.FAIL
    assert "SIGILL" in found["CPU-003"].observed
    assert "avx512f" in found["CPU-003"].observed
    assert "SIGILL, although the flags say AVX2" in found["FIT-001"].evidence[0].raw


def masked(root: Path, measured: dict[str, object] | None = None) -> RecordedSystem:
    """A machine whose /proc/cpuinfo says nothing."""
    system = record(root, cores=2, smt=False, measured={"cpuinfo": measured} if measured else {})
    put(root, "/proc/cpuinfo", "")
    return system


def test_py_cpuinfo_answers_where_the_kernel_does_not(tmp_path):
    said = {"brand": "AMD EPYC 7313", "flags": [*AVX2.split(), "hypervisor"]}
    found = cpu.probe(masked(tmp_path, said))
    assert (found.model_name, found.flags) == ("AMD EPYC 7313", frozenset(said["flags"]))
    assert (found.evidence[0].source, found.hypervisor) == ("py-cpuinfo", True)


def test_on_arm_only_the_name_is_taken_from_py_cpuinfo(tmp_path):
    system = masked(tmp_path, {"brand": "Neoverse-N1", "flags": ["made", "up"]})
    put(tmp_path, "/proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n")
    found = cpu.probe(system)
    assert (found.model_name, found.flags) == ("Neoverse-N1", {"fp", "asimd"})


def test_without_any_answer_the_cpu_is_unknown(tmp_path):
    assert cpu.probe(masked(tmp_path)).model_name == "unknown CPU"


def test_T114_T115_py_cpuinfo_is_not_asked_when_the_kernel_answers(tmp_path):
    system = record(tmp_path, measured={"cpuinfo": {"brand": "another"}})
    assert cpu.probe(system).model_name == "AMD EPYC 7313 16-Core Processor"


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "raise Exception('no such CPU')"])
def test_T114_T115_a_py_cpuinfo_that_hangs_or_fails_stops_nothing(tmp_path, monkeypatch, code):
    """The real child, with a package of that name in front of the installed one."""
    monkeypatch.setattr(cpu, "CPUINFO_DEADLINE_S", 1.5)
    put(tmp_path, "/modules/cpuinfo.py", f"def get_cpu_info():\n    {code}\n")
    machine_root = masked(tmp_path / "machine").root
    system = System(Environ({"PYTHONPATH": str(tmp_path / "modules")}), machine_root)
    started = time.monotonic()
    assert cpu.probe(system).model_name == "unknown CPU"
    assert time.monotonic() - started < 5


def test_the_real_py_cpuinfo_is_understood(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "CPUINFO_DEADLINE_S", 30.0)  # a busy machine
    found = cpu.probe(System(Environ.current(), masked(tmp_path).root))
    assert found.flags


def test_flags_are_those_of_every_allowed_cpu(tmp_path):
    system = record(tmp_path, cores=2, smt=False)
    blocks = [
        f"processor : {n}\nmodel name : X\nflags : {flags}\n"
        for n, flags in enumerate((AVX512, AVX2))
    ]
    put(tmp_path, "/proc/cpuinfo", "\n".join(blocks))
    assert "avx512f" not in cpu.probe(system).flags
    assert "avx2" in cpu.probe(system).flags


def test_arm_is_told_what_is_needed(tmp_path):
    system = record(tmp_path)
    put(tmp_path, "/proc/cpuinfo", "processor : 0\nFeatures : fp asimd i8mm sve\n")
    found = answers(system)["CPU-002"]
    assert found.status is Status.FAIL
    assert found.required == "x86-64 with AVX2"


def test_offline_and_isolated_cpus_are_left_alone(tmp_path):
    system = record(tmp_path, cores=8, smt=False)
    put(tmp_path, "/sys/devices/system/cpu/online", "0-5\n")
    put(tmp_path, "/sys/devices/system/cpu/isolated", "4-5\n")
    assert cpu.probe(system).allowed == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8\n", (0, 1, 2, 3, 8)), ("", ()), ("\n", ()), (None, ()), ("5", (5,)), ("x", ())],
)
def test_cpu_lists_parse_and_print(text, cpus):
    assert parse_cpulist(text) == cpus
    if cpus and text:
        assert format_cpulist(cpus) == text.strip()


@pytest.mark.parametrize(
    "text", ["0-99999999999", "7,99999999999-999999999999999", "²", "²-³", "1-²"]
)
def test_a_cpu_list_of_nonsense_fills_no_memory(text: str):
    assert len(parse_cpulist(text)) <= 1 + (1 << 16)


def test_asked_cpus_and_threads_are_checked(tmp_path):
    found = cpu.probe(record(tmp_path, cores=8, smt=False))
    assert cpu_layout(found, Settings(tier_cpus="2-5"), feeds_gpu=True).cpus == (2, 3, 4, 5)
    assert cpu_layout(found, Settings(tier_threads=3), feeds_gpu=True).cpus == (5, 6, 7)
    with pytest.raises(UsageError, match="CPUs 9 are not ours"):
        cpu_layout(found, Settings(tier_cpus="9"), feeds_gpu=True)
    with pytest.raises(UsageError, match="not a list of CPUs"):
        cpu_layout(found, Settings(tier_cpus="all"), feeds_gpu=True)
    with pytest.raises(UsageError, match="9 threads asked for, 8 CPUs"):
        cpu_layout(found, Settings(tier_threads=9), feeds_gpu=True)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7), (16, 14), (24, 22)])
def test_one_or_two_cores_stay_free_beside_a_gpu(tmp_path, cores, threads):
    assert pool(record(tmp_path, cores=cores, smt=False)) == threads
