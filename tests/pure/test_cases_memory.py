"""RAM, cgroup, WSL and Docker cases by their ids, each on a recorded machine."""

from __future__ import annotations

import json

import pytest
from recorded_machines import GIB, cgroup_v2, gpu, put, record

from glm53ctl import choose, doctor
from glm53ctl.checks.base import Finding, Status
from glm53ctl.env import Settings
from glm53ctl.probes import docker, h2d_child, machine, ram


def answers(system, **flags) -> dict[str, Finding]:
    quick = flags.pop("quick", True)
    report = doctor.examine(choose.PlanOptions(**flags), system, quick=quick)
    return {check.id: check.finding for check in report.checks}


def test_T010_page_cache_inside_a_limit_is_headroom(tmp_path):
    system = record(tmp_path, total_gib=512, available_gib=400)
    cgroup_v2(
        tmp_path,
        "/user.slice/run-1.scope",
        memory_max=f"{200 * GIB}\n",
        memory_current=f"{195 * GIB}\n",
        memory_stat=f"inactive_file {180 * GIB}\nactive_file {5 * GIB}\nfile_dirty 0\n",
    )
    assert ram.probe(system).usable_bytes == 190 * GIB


def test_T011_a_group_without_a_limit_is_skipped(tmp_path):
    system = record(tmp_path, total_gib=32, available_gib=29)
    cgroup_v2(tmp_path, "/app", memory_max="max\n", memory_current=f"{28 * GIB}\n")
    found = ram.probe(system)
    assert found.limits == ()
    assert found.usable_bytes == 29 * GIB


def test_T013_the_group_that_limits_is_named(tmp_path):
    system = record(tmp_path, total_gib=256, available_gib=200, gpus=[gpu()])
    cgroup_v2(tmp_path, "/docker/4f2a", memory_max="8589934592\n", memory_current="0\n")
    assert ram.probe(system).usable_bytes == 8 * GIB
    outcome = choose.decide(choose.survey(choose.PlanOptions(), system=system))
    assert outcome.plan is None
    assert "8.0 GiB usable (limited by /docker/4f2a)" in outcome.rejections[0].reason
    assert "limited by /docker/4f2a" in answers(system)["RAM-001"].observed


def test_an_ancestor_limits_as_well_as_the_innermost_group(tmp_path):
    system = record(tmp_path, total_gib=256, available_gib=200)
    cgroup_v2(tmp_path, "/user.slice/me.scope", memory_max="max\n", memory_current="0\n")
    put(tmp_path, "/sys/fs/cgroup/user.slice/memory.max", f"{16 * GIB}\n")
    put(tmp_path, "/sys/fs/cgroup/user.slice/memory.current", f"{4 * GIB}\n")
    assert ram.probe(system).usable_bytes == 12 * GIB
    assert ram.probe(system).limiter == "/user.slice"


def test_T013b_a_hybrid_hierarchy_uses_v1_and_knows_its_no_limit(tmp_path):
    system = record(tmp_path)
    put(tmp_path, "/proc/self/cgroup", "4:memory:/grp/a41a\n0::/\n")
    for path in ("", "/grp", "/grp/a41a"):
        put(tmp_path, f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes", "9223372036854771712\n")
    found = ram.probe(system)
    assert found.limits == ()
    assert found.limiter == "this machine"
    put(tmp_path, "/sys/fs/cgroup/memory/grp/memory.limit_in_bytes", f"{8 * GIB}\n")
    put(tmp_path, "/sys/fs/cgroup/memory/grp/memory.usage_in_bytes", f"{GIB}\n")
    assert ram.probe(system).usable_bytes == 7 * GIB


ARC = "name type data\nsize 4 {size}\nc_min 4 {least}\n"


def test_T014_evictable_zfs_cache_counts_as_usable(tmp_path):
    system = record(tmp_path, total_gib=256, available_gib=120)
    put(tmp_path, "/proc/spl/kstat/zfs/arcstats", ARC.format(size=100 * GIB, least=8 * GIB))
    assert ram.probe(system).usable_bytes == 212 * GIB
    found = answers(system)
    assert "incl. 92.0 GiB evictable ZFS ARC" in found["RAM-001"].observed
    assert found["RAM-005"].fix is not None
    assert "zfs_arc_max" in found["RAM-005"].fix.commands[0]


def test_T015_filling_the_zfs_cache_does_not_change_the_verdict(tmp_path):
    before = record(tmp_path / "before", total_gib=256, available_gib=120, gpus=[gpu()])
    put(before.root, "/proc/spl/kstat/zfs/arcstats", ARC.format(size=100 * GIB, least=8 * GIB))
    after = record(tmp_path / "after", total_gib=256, available_gib=83, gpus=[gpu()])
    put(after.root, "/proc/spl/kstat/zfs/arcstats", ARC.format(size=137 * GIB, least=8 * GIB))
    verdicts = [answers(system)["RAM-001"].status for system in (before, after)]
    assert verdicts[0] is verdicts[1] is Status.PASS
    assert ram.probe(before).usable_bytes == ram.probe(after).usable_bytes


def test_zfs_cache_of_the_host_is_not_ours_in_lxc(tmp_path):
    system = record(tmp_path, total_gib=256, available_gib=120)
    put(tmp_path, "/proc/spl/kstat/zfs/arcstats", ARC.format(size=100 * GIB, least=8 * GIB))
    put(tmp_path, "/proc/self/mountinfo", "1 1 0:1 / /proc/meminfo rw - fuse.lxcfs lxcfs rw\n")
    assert ram.probe(system).usable_bytes == 120 * GIB


def test_T016_reserved_huge_pages_are_named_and_not_counted_as_no_plan_uses_them(tmp_path):
    system = record(tmp_path, total_gib=256, available_gib=60)
    base = "/sys/kernel/mm/hugepages/hugepages-2048kB"
    put(tmp_path, f"{base}/free_hugepages", "65536\n")
    put(tmp_path, f"{base}/resv_hugepages", "0\n")
    found = ram.probe(system)
    assert found.hugepages_free_bytes == 128 * GIB
    assert found.usable_bytes == 60 * GIB
    assert "128 GiB parked in hugepages" in answers(system)["RAM-003"].observed


def test_T018_unknown_ram_is_an_error_and_never_a_skip(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    (tmp_path / "proc/meminfo").unlink()
    outcome = choose.decide(choose.survey(choose.PlanOptions(), system=system))
    assert outcome.plan is None
    assert "host RAM is unknown" in outcome.rejections[0].reason


def test_T026_the_pin_wall_is_probed_and_plans_with_four_fifths_of_it(tmp_path):
    calls: list[int] = []

    def pin(size: int) -> bool:
        calls.append(size)
        return len(calls) < 4

    step = 256 << 20
    budget = h2d_child.pin_budget(pin, step=step, most=4 << 30)
    assert budget == int(0.8 * (768 << 20))
    assert h2d_child.pin_budget(lambda _: True, step=step, most=4 << 30) is None
    measured = {"h2d": {"bytes_per_s": 20e9, "pin_limit_bytes": budget}}
    system = record(tmp_path, gpus=[gpu()], measured=measured)
    put(tmp_path, "/proc/sys/kernel/osrelease", "6.18.33.2-microsoft-standard-WSL2\n")
    found = answers(system, quick=False)
    assert found["LIM-003"].status is Status.WARN
    assert "614 MiB" in found["LIM-003"].observed
    assert "only 0.60 GiB can be pinned" in found["FIT-001"].evidence[0].raw


@pytest.mark.parametrize(
    "path", ["/usr/lib/wsl/lib/nvidia-smi", "/run/current-system/sw/bin/nvidia-smi"]
)
def test_T035_T036_T037_nvidia_smi_is_found_where_path_does_not_look(tmp_path, path):
    from test_cases_gpu import UUID, with_smi

    system = with_smi(tmp_path, {}, path=path)
    assert machine.probe(system).gpus[0].uuid == UUID


CDI_OF_MANAGEMENT = (
    'cdiVersion: "0.5.0"\nkind: management.nvidia.com/gpu\ndevices:\n  - name: all\n'
)
CDI_OF_CLUSTER = json.dumps(
    {"kind": "k8s.device-plugin.nvidia.com/gpu", "devices": [{"name": "all"}]}
)
CDI_OF_GPU = """cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits:
      mounts:
        - hostPath: /usr/lib/libcuda.so.580.126.09
          name: not-a-device
  - name: GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc
  - name: all
"""


def test_T038_D09_cdi_devices_count_only_with_their_kind(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    put(tmp_path, "/var/run/cdi/management.nvidia.com-gpu.yaml", CDI_OF_MANAGEMENT)
    put(tmp_path, "/var/run/cdi/k8s.json", CDI_OF_CLUSTER)
    assert docker.cdi_devices(system) == ()
    put(tmp_path, "/etc/cdi/nvidia.yaml", CDI_OF_GPU)
    assert docker.cdi_devices(system) == ("0", "GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc", "all")
    assert docker.cdi_driver(system) == "580.126.09"


def test_a_cdi_specification_for_another_driver_is_stale(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    put(tmp_path, "/etc/cdi/nvidia.yaml", CDI_OF_GPU.replace("580.126.09", "570.10"))
    found = answers(system)["DOCK-003"]
    assert found.status is Status.WARN
    assert "570.10" in found.observed


DOCKER_INFO = "docker info --format {{json .}}"


def test_T044_T045_systemd_cgroups_without_device_links_are_warned_about(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    info = {"ServerVersion": "28.1", "Runtimes": {"nvidia": {}}, "CgroupDriver": "systemd"}
    commands = {
        DOCKER_INFO: {"code": 0, "out": json.dumps(info)},
        "nvidia-ctk --version": {"code": 0, "out": "NVIDIA Container Toolkit CLI version 1.17.8\n"},
    }
    put(tmp_path, "/commands.json", json.dumps(commands))
    assert answers(system)["DOCK-002"].status is Status.WARN
    put(tmp_path, "/dev/char/195:0", "")
    assert answers(system)["DOCK-002"].status is Status.PASS


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"code": 127, "problem": "missing"}, Status.SKIP),
        (
            {"code": 1, "out": '{"ServerErrors":["permission denied while trying to connect"]}'},
            Status.WARN,
        ),
        (
            {"code": 1, "out": '{"ServerErrors":["Cannot connect to the Docker daemon"]}'},
            Status.SKIP,
        ),
        ({"code": 124, "problem": "timeout"}, Status.SKIP),
    ],
)
def test_docker_that_does_not_answer_never_blocks(tmp_path, answer, status):
    system = record(tmp_path, gpus=[gpu()])
    put(tmp_path, "/commands.json", json.dumps({DOCKER_INFO: answer}))
    assert answers(system)["DOCK-001"].status is status


def test_T103_a_tiny_memlock_limit_is_advice_with_a_drop_in(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    put(
        tmp_path,
        "/proc/self/limits",
        "Max locked memory         65536                65536                bytes\n",
    )
    found = answers(system)["LIM-001"]
    assert found.status is Status.WARN
    assert found.numbers["memlock_soft_bytes"] == 65536
    assert found.fix is not None
    assert "LimitMEMLOCK=infinity" in found.fix.text


def test_T104_T105_T106_a_small_shm_is_warned_about(tmp_path):
    system = record(tmp_path)
    record_ = json.loads((tmp_path / "machine.json").read_text())
    record_["disk"][str(tmp_path / "dev/shm")] = {
        "free_bytes": 64 << 20, "total_bytes": 64 << 20, "free_inodes": 1
    }  # fmt: skip
    put(tmp_path, "/machine.json", json.dumps(record_))
    found = answers(system)["LIM-002"]
    assert found.status is Status.WARN
    assert found.fix is not None
    assert "--shm-size" in found.fix.commands[0]


def test_wsl1_is_refused(tmp_path):
    system = record(tmp_path)
    put(tmp_path, "/proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n")
    found = answers(system, model="tiny")["HOST-001"]
    assert found.status is Status.FAIL


def test_margin_setting_changes_the_budget(tmp_path):
    system = record(tmp_path, total_gib=125, available_gib=122, gpus=[gpu()])
    tight = choose.decide(choose.survey(choose.PlanOptions(), system=system))
    assert tight.plan is None
    easy = record(tmp_path, total_gib=125, available_gib=122, gpus=[gpu()],
                  environ={"GLM53_RAM_MARGIN_GB": "2"})  # fmt: skip
    assert choose.decide(choose.survey(choose.PlanOptions(), system=easy)).plan is not None
    assert Settings().ram_margin_bytes is None


def test_an_early_oom_killer_is_named_with_its_exemption(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    put(tmp_path, "/proc/311/comm", "systemd-oomd\n")
    found = answers(system)["RAM-006"]
    assert found.status is Status.WARN
    assert "systemd-oomd runs" in found.observed
    assert found.fix is not None
    assert "ManagedOOMPreference=omit" in found.fix.commands[1]
