"""GPU cases by their ids: discovery, parsing and selection. Each is a recorded machine."""

from __future__ import annotations

import json
import time

import pytest
from recorded_machines import DRIVER, GIB, gpu, link_files, put, record

from glm53ctl import choose, doctor, planner
from glm53ctl.checks.base import Finding, Status
from glm53ctl.errors import NoFit, UsageError
from glm53ctl.hardware import DriverState
from glm53ctl.plan import Mode
from glm53ctl.probes import gpu as gpu_probe
from glm53ctl.probes import kernel_log, machine, nvml_child, smi
from glm53ctl.probes.system import System

UUID = "GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc"
SMI = "/usr/bin/nvidia-smi"


def answers(system, **flags) -> dict[str, Finding]:
    quick = flags.pop("quick", True)
    report = doctor.examine(choose.PlanOptions(**flags), system, quick=quick)
    return {check.id: check.finding for check in report.checks}


def with_smi(
    root, answers_by_field: dict[str, dict[str, object]], *, path: str = SMI, uuid: str = UUID
):
    """A machine whose NVML library is missing and whose nvidia-smi gives these answers."""
    system = record(root, nvml={"problem": "no_library", "detail": "not found"})
    put(root, path, "")
    identity = f"{path} --query-gpu={','.join(smi.IDENTITY)} --format=csv,noheader,nounits"
    commands = {identity: {"code": 0, "out": f"0, {uuid}, NVIDIA GeForce RTX 3090, 580.126.09\n"}}
    values = {"pci.bus_id": "00000000:01:00.0", "compute_cap": "8.6", "memory.total": "24564",
              "memory.free": "24000", "pcie.link.gen.current": "1", "pcie.link.width.current": "16"}  # fmt: skip
    for field in smi.DETAILS:
        argv = f"{path} --id={uuid} --query-gpu={field} --format=csv,noheader,nounits"
        commands[argv] = answers_by_field.get(field, {"code": 0, "out": values[field] + "\n"})
    commands.update({key: value for key, value in answers_by_field.items() if key.startswith("/")})
    put(root, "/commands.json", json.dumps(commands))
    return system


def test_T001_a_failing_nvidia_smi_is_one_finding_and_the_others_stay(tmp_path):
    said = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running.\n"
    )
    query = f"{SMI} --query-gpu={','.join(smi.IDENTITY)} --format=csv,noheader,nounits"
    system = with_smi(tmp_path, {query: {"code": 9, "out": said}})
    report = doctor.examine(choose.PlanOptions(), system)
    found = {check.id: check.finding for check in report.checks}
    assert found["GPU-001"].status is Status.FAIL
    assert found["GPU-001"].observed.startswith("driver not loaded")
    assert len(found) == len(doctor.SPECS)
    assert found["CPU-001"].status is Status.PASS
    assert report.exit_code() == 4


def test_T003_memory_that_is_not_available_is_unknown_and_never_zero(tmp_path):
    refused = {"code": 0, "out": "[N/A]\n"}
    system = with_smi(tmp_path, {"memory.total": refused, "memory.free": refused})
    card = machine.probe(system).gpus[0]
    assert card.total_bytes is None
    assert card.unified_memory
    found = answers(system)["GPU-006"]
    assert found.status is Status.UNKNOWN
    assert "shared memory; 240.0 GiB of RAM available" in found.observed
    assert found.numbers["free_bytes"] is None


def test_T005_unified_memory_is_refused_by_name(tmp_path):
    card = gpu("NVIDIA GB10", memory=None, problems={"memory": "NotSupported"})
    system = record(tmp_path, gpus=[card])
    assert len(answers(system)) == len(doctor.SPECS)
    situation = choose.survey(choose.PlanOptions(), system=system)
    with pytest.raises(NoFit, match="unified-memory parts are not supported by this build"):
        choose.decide(situation).chosen()


def test_T006_insufficient_permissions_is_unknown_with_a_hint(tmp_path):
    refused = {"code": 0, "out": "[Insufficient Permissions]\n"}
    system = with_smi(tmp_path, {"memory.total": refused, "memory.free": refused})
    found = answers(system)["GPU-006"]
    assert found.status is Status.UNKNOWN
    assert found.fix is not None
    assert "/dev/nvidia" in found.fix.text
    assert ("gpu 0 memory.total", "[Insufficient Permissions]") in machine.probe(system).unknown


def test_T008_an_idle_link_at_gen1_is_normal(tmp_path):
    link = {"generation": 1, "width": 16, "max_generation": 3, "max_width": 16}
    measured = {"h2d": {"bytes_per_s": 12.9e9, "generation": 3, "width": 16}}
    system = record(tmp_path, gpus=[gpu(link=link)], measured=measured)
    found = answers(system, quick=False)["GPU-004"]
    assert found.status is Status.PASS
    assert found.observed == "Gen3 x16, 12.9 GB/s measured (idles at Gen1)"
    assert answers(system)["GPU-004"].status is Status.SKIP


def test_a_copy_that_shows_a_bad_riser_or_heat_is_advice(tmp_path):
    measured = {
        "h2d": {"bytes_per_s": 25e9, "generation": 4, "width": 16, "replays": 13, "throttle": 0x44}
    }
    system = record(tmp_path, gpus=[gpu()], measured=measured)
    found = answers(system, quick=False)
    assert found["GPU-004"].status is Status.WARN
    assert "13 packets had to be sent again" in found["GPU-004"].observed
    assert found["GPU-007"].observed == "slowed down by heat"
    assert answers(system)["GPU-007"].status is Status.PASS


def test_T009_speed_and_lanes_stay_apart(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    link_files(tmp_path, "0000:01:00.0", speed="8.0 GT/s PCIe", width=1)
    link = machine.probe(system).gpus[0].link
    assert link is not None
    assert (link.max_generation, link.width) == (3, 1)
    assert link.ceiling_bytes_per_s == pytest.approx(0.985e9)
    found = answers(system)["GPU-004"]
    assert found.status is Status.WARN
    assert "Gen3 x1" in found.observed
    assert "narrower" in found.observed


def test_T009c_a_link_stuck_at_gen1_under_load_is_advice_and_the_plan_uses_its_rate(tmp_path):
    measured = {"h2d": {"bytes_per_s": 3.2e9, "generation": 1, "width": 16}}
    system = record(tmp_path, gpus=[gpu()], measured=measured)
    report = doctor.examine(choose.PlanOptions(), system, quick=False)
    found = {check.id: check for check in report.checks}["GPU-004"]
    assert found.finding.status is Status.FAIL
    assert "stuck at Gen1 under load" in found.finding.observed
    assert not found.blocks
    assert report.exit_code() == 0
    assert report.outcome is not None
    exact = next(item for item in report.outcome.predictions if item.mode is Mode.EXACT)
    assert exact.high_tokens_per_s < 3


def test_T030_an_unknown_field_does_not_hide_the_gpu(tmp_path):
    refused = {"code": 2, "out": 'Field "compute_cap" is not a valid field to query.\n'}
    system = with_smi(tmp_path, {"compute_cap": refused})
    card = machine.probe(system).gpus[0]
    assert card.uuid == UUID
    assert card.capability is None
    found = answers(system)["GPU-002"]
    assert found.status is Status.PASS
    assert "sm_86 (by its name)" in found.observed


def test_T028_a_shadowing_pynvml_is_decoded_and_reported(tmp_path):
    class Old:
        class NVMLError(Exception):
            pass

        nvmlInit = staticmethod(lambda: None)
        nvmlDeviceGetCount = staticmethod(lambda: 1)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda _: object())
        nvmlSystemGetDriverVersion = staticmethod(lambda: b"580.126.09")
        nvmlSystemGetCudaDriverVersion_v2 = staticmethod(lambda: 13000)
        nvmlDeviceGetName = staticmethod(lambda _: b"NVIDIA GeForce RTX 4090")
        nvmlDeviceGetUUID = staticmethod(lambda _: b"GPU-1")

    answer = nvml_child.snapshot(Old)
    system = record(tmp_path, nvml=answer)
    hardware = machine.probe(system)
    assert hardware.gpus[0].name == "NVIDIA GeForce RTX 4090"
    assert answers(system)["GPU-009"].status is Status.WARN


def test_T031_a_driver_that_hangs_costs_its_deadline_and_no_more(tmp_path, monkeypatch):
    """The child ignores SIGTERM and sleeps; the kernel state D can only be simulated."""
    monkeypatch.setattr("glm53ctl.probes.system.process_state", lambda _: "D")
    system = record(
        tmp_path, nvml={"problem": "hung", "detail": "driver not answering (process stuck in D)"}
    )
    found = answers(system)["GPU-001"]
    assert found.status is Status.FAIL
    assert "process stuck in D" in found.observed
    assert found.fix is not None
    assert found.fix.needs_reboot
    started = time.monotonic()
    script = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    import sys

    result = System().run([sys.executable, "-c", script], deadline_s=0.3)
    assert result.problem == "timeout"
    assert time.monotonic() - started < 2


def test_T031b_a_lost_gpu_split_over_lines_is_one_finding(tmp_path):
    log = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert kernel_log.events(log) == (kernel_log.GpuEvent("lost", "0000:b3:00.0"),)
    system = record(tmp_path, gpus=[gpu()])
    journal = "journalctl -k -b -o cat -g NVRM|fallen off"
    put(tmp_path, "/commands.json", json.dumps({journal: {"code": 0, "out": log}}))
    found = answers(system)["GPU-012"]
    assert found.status is Status.FAIL
    assert "0000:b3:00.0" in found.observed


def test_T032_host_pids_in_a_container_are_named_as_such(tmp_path):
    holder = {"pid": 10734, "kind": "compute", "used": 20 * GIB}
    total = 24_564 << 20
    memory = {"total": total, "free": 2 * GIB, "used": 22 * GIB, "reserved": 0}
    system = record(tmp_path, gpus=[gpu(processes=[holder], memory=memory)])
    assert "10734 (other namespace)" in answers(system)["GPU-006"].observed


def test_T117_free_vram_comes_from_the_framebuffer(tmp_path):
    memory = {"total": 24 * GIB, "free": 13_000 << 20, "used": 11_000 << 20, "reserved": 0}
    system = record(tmp_path, gpus=[gpu(memory=memory, bar1_total=256 << 20)])
    found = answers(system)
    assert found["GPU-006"].numbers["free_bytes"] == 13_000 << 20
    assert found["GPU-010"].observed.startswith("off (256 MiB)")


def test_T118_an_unsupported_bar1_leaves_the_rest_intact(tmp_path):
    card = gpu(bar1_total=None, problems={"bar1": "NotSupported"})
    found = answers(record(tmp_path, gpus=[card]))
    assert found["GPU-010"].status is Status.UNKNOWN
    assert found["GPU-006"].status is Status.PASS


def test_T020_a_uuid_in_cuda_visible_devices_selects_that_card(tmp_path):
    cards = [gpu(uuid="GPU-aaaaaaaa"), gpu(index=1, uuid=UUID, bus_id="00000000:02:00.0")]
    system = record(tmp_path, gpus=cards, environ={"CUDA_VISIBLE_DEVICES": UUID})
    plan = choose.decide(choose.survey(choose.PlanOptions(), system=system)).chosen()
    assert plan.gpu is not None
    assert plan.gpu.uuid == UUID
    assert ("CUDA_VISIBLE_DEVICES", UUID) in plan.child_env


def test_T021_a_mig_slice_is_recognised_and_refused_with_its_size(tmp_path):
    slice_uuid = "MIG-377e0049-554c-540b-93c6-d0976f8426cb"
    slice_ = {"index": 0, "uuid": slice_uuid, "name": "NVIDIA H100 MIG 1g.10gb", "parent_uuid": UUID,
              "memory": {"total": 10 * GIB, "free": 10 * GIB, "used": 0}, "problems": {}}  # fmt: skip
    system = record(tmp_path, gpus=[gpu("NVIDIA H100", mig=[1, 1], capability=[9, 0]), slice_])
    outcome = choose.decide(choose.survey(choose.PlanOptions(gpu=slice_uuid), system=system))
    assert "the MIG slice has 10.0 GiB, 20 GiB are needed" in outcome.rejections[0].reason


def test_D04_a_bad_selector_is_an_error_and_never_widens(tmp_path):
    system = record(tmp_path, gpus=[gpu()], environ={"CUDA_VISIBLE_DEVICES": "GPU-00000000"})
    with pytest.raises(UsageError, match="matches no GPU"):
        choose.choose_plan(choose.PlanOptions(), system=system)
    report = doctor.examine(choose.PlanOptions(), system)
    assert {check.id: check for check in report.checks}["GPU-005"].blocks
    with pytest.raises(UsageError, match="several GPUs"):
        choose.choose_plan(choose.PlanOptions(gpu="0,1"), system=system)


def test_D05_a_plan_names_its_card_by_uuid_in_pci_order(tmp_path):
    """CUDA may count the faster card first; the child sees one UUID, whatever its number."""
    cards = [gpu(uuid="GPU-slow"), gpu(index=1, uuid="GPU-fast", bus_id="00000000:41:00.0")]
    system = record(tmp_path, gpus=cards)
    plan = choose.decide(choose.survey(choose.PlanOptions(gpu="1"), system=system)).chosen()
    assert dict(plan.child_env)["CUDA_VISIBLE_DEVICES"] == "GPU-fast"
    assert dict(plan.child_env)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("selector", ["GPU-52a3", UUID.upper(), "pci:01:00.0", "0"])
def test_selectors_accept_prefix_case_and_address(tmp_path, selector):
    hardware = machine.probe(record(tmp_path, gpus=[gpu()]))
    assert planner.pick_gpu(hardware, selector).uuid == UUID


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("NVMLError_LibraryNotFound", DriverState.NO_LIBRARY),
        ("NVMLError_DriverNotLoaded", DriverState.NOT_LOADED),
        ("NVMLError_LibRmVersionMismatch", DriverState.MISMATCH),
        ("NVMLError_Unknown", DriverState.NO_ACCESS),
        ("NVMLError_GpuIsLost", DriverState.LOST),
    ],
)
def test_each_nvml_failure_has_its_own_state_and_fix(tmp_path, error, state):
    class Nvml:
        class NVMLError(Exception):
            pass

        @classmethod
        def nvmlInit(cls):
            raise type(error, (cls.NVMLError,), {})("said so")

    system = record(tmp_path, nvml=nvml_child.snapshot(Nvml))
    put(tmp_path, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    put(tmp_path, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    driver, _, _ = gpu_probe.probe(system)
    assert driver.state is state
    found = answers(system)["GPU-001"]
    assert found.status is Status.FAIL
    assert found.fix is not None


def test_driver_versions_compare_as_numbers(tmp_path):
    nvml = {**DRIVER, "driver": "580.9", "gpus": [gpu()]}
    assert answers(record(tmp_path, nvml=nvml, modules=[]))["GPU-003"].status is Status.FAIL
    nvml = {**DRIVER, "driver": "580.100.3", "gpus": [gpu()]}
    assert answers(record(tmp_path, nvml=nvml, modules=[]))["GPU-003"].status is Status.PASS


def test_a_desktop_beside_an_integrated_gpu_is_told_to_move_its_plug(tmp_path):
    card = gpu(display_active=1, processes=[{"pid": 9, "kind": "graphics", "used": 2 * GIB}])
    system = record(tmp_path, gpus=[card])
    assert answers(system)["GPU-006"].status is Status.PASS
    put(tmp_path, "/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")
    put(tmp_path, "/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n")
    found = answers(system)["GPU-006"]
    assert found.status is Status.WARN
    assert found.fix is not None
    assert found.fix.text == "plug the monitor into the board and win 2.0 GiB"


def test_a_desktop_whose_vram_does_not_survive_suspend_is_advised(tmp_path):
    system = record(tmp_path, gpus=[gpu(display_active=1)])
    put(tmp_path, "/proc/driver/nvidia/params", "PreserveVideoMemoryAllocations: 0\n")
    assert answers(system)["GPU-013"].status is Status.WARN
    put(tmp_path, "/proc/driver/nvidia/params", "PreserveVideoMemoryAllocations: 1\n")
    assert answers(system)["GPU-013"].status is Status.PASS


def test_xid_errors_of_the_hardware_are_told_from_those_of_programs(tmp_path):
    system = record(tmp_path, gpus=[gpu()])
    journal = "journalctl -k -b -o cat -g NVRM|fallen off"
    line = "NVRM: Xid (PCI:0000:01:00): {number}, pid=1, name=python\n"
    for number, status in ((31, Status.PASS), (79, Status.WARN)):
        out = line.format(number=number)
        put(tmp_path, "/commands.json", json.dumps({journal: {"code": 0, "out": out}}))
        assert answers(system)["GPU-012"].status is status
    (tmp_path / "commands.json").unlink()
    assert answers(system)["GPU-012"].status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("reasons", "status"),
    [(0x1, Status.PASS), (0x4, Status.PASS), (0x40, Status.WARN), (0x8, Status.FAIL)],
)
def test_throttling_is_judged_by_its_reason(tmp_path, reasons, status):
    assert answers(record(tmp_path, gpus=[gpu(throttle=reasons)]))["GPU-007"].status is status


def test_a_power_cap_is_a_fact_and_not_a_fault(tmp_path):
    found = answers(record(tmp_path, gpus=[gpu(power_limit_mw=280_000)]))["GPU-007"]
    assert (found.status, found.observed) == (Status.PASS, "capped at 280 of 350 W, your setting")
