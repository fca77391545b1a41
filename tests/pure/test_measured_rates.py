"""The measuring children and NVML's child, as far as they run without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from recorded_machines import gpu, record

from glm53ctl import choose, doctor
from glm53ctl.checks.base import Status
from glm53ctl.env import Environ
from glm53ctl.hardware import DriverState
from glm53ctl.probes import disk_child, machine, measure, nvml_child, ram_child
from glm53ctl.probes import gpu as gpu_probe
from glm53ctl.probes.system import System

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "server", ROOT / "kernels")))


def this_machine(**environ: str) -> System:
    return System(Environ({**os.environ, "PYTHONPATH": PATHS, **environ}))


def test_memory_is_read_at_a_believable_rate():
    cpu = min(os.sched_getaffinity(0))
    script = (
        "from glm53ctl.probes.ram_child import measure;"
        f"print(measure([{cpu}], total_bytes=1 << 25, seconds=0.1))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 0.2e9 < float(found.stdout) < 1e12
    assert ram_child.LEAST_BYTES > 0


def test_a_disk_is_read_without_writing(tmp_path):
    file = tmp_path / "shard"
    file.write_bytes(bytes(16 << 20))
    before = file.stat().st_mtime_ns
    rate, direct = disk_child.measure(str(file), seconds=0.2)
    assert rate > 1e6
    assert isinstance(direct, bool)
    assert file.stat().st_mtime_ns == before


def test_a_missing_file_is_a_reason_and_not_a_crash():
    answer = this_machine().measure("disk", "/nonexistent/shard", deadline_s=10)
    assert answer["problem"] == "/nonexistent/shard: No such file or directory"


def test_the_kernels_are_measured_and_tested_in_a_child():
    cpu = str(min(os.sched_getaffinity(0)))
    answer = this_machine().measure("tier", cpu, deadline_s=60)
    assert answer.get("bytes_per_s", 0) > 1e6, answer
    assert answer["isa"] in {"scalar", "avx2", "avx512"}


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="for machines without a GPU")
def test_without_a_driver_the_link_is_a_reason():
    answer = this_machine().measure("h2d", "GPU-x", deadline_s=20)
    assert "libcuda.so.1" in answer["problem"]


def test_a_child_that_dies_tells_its_signal(tmp_path):
    (tmp_path / "glm53_kernels.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGILL)\n"
    )
    system = this_machine(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    answer = system.measure("tier", "0", deadline_s=20)
    assert answer["code"] == -4
    found = measure.measure(system, machine.probe(record(tmp_path / "m")), None)
    assert found.cpu.self_test == "SIGILL"


def test_too_little_vram_skips_the_copy_with_the_reason(tmp_path):
    memory = {"total": 24 << 30, "free": 1 << 30, "used": 23 << 30, "reserved": 0}
    system = record(tmp_path, gpus=[gpu(memory=memory)])
    hardware = machine.probe(system)
    found = measure.measure(system, hardware, hardware.gpus[0])
    assert ("link rate", "less than 1.5 GiB of VRAM is free") in found.unknown


HANGING_NVML = """
import signal, time
class NVMLError(Exception): pass
def nvmlInit():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
"""


@pytest.mark.parametrize(("state", "limit_s"), [("D", 4), ("S", 8)])
def test_T031_doctor_outlives_a_driver_that_never_answers(tmp_path, monkeypatch, state, limit_s):
    monkeypatch.setattr("glm53ctl.probes.system.process_state", lambda _: state)
    (tmp_path / "pynvml.py").write_text(HANGING_NVML)
    system = this_machine(PYTHONPATH=f"{tmp_path}{os.pathsep}{PATHS}", GLM53_DOCTOR_IGNORE="")
    started = time.monotonic()
    report = doctor.examine(choose.PlanOptions(), system, only=["GPU-001", "CPU-001"])
    assert time.monotonic() - started < limit_s
    driver = {check.id: check.finding for check in report.checks}["GPU-001"]
    assert driver.status is Status.FAIL
    assert "driver not answering (no answer in time)" in driver.observed


def test_a_card_that_has_to_wake_up_is_waited_for(tmp_path):
    """Without persistence the first call of a headless machine initialises the card: 1 to 3 s."""
    waking = "import time\nclass NVMLError(Exception): pass\ndef nvmlInit(): time.sleep(2.3)\n"
    (tmp_path / "pynvml.py").write_text(
        waking + "def nvmlDeviceGetCount(): raise NVMLError('up')\n"
    )
    system = this_machine(PYTHONPATH=f"{tmp_path}{os.pathsep}{PATHS}")
    assert system.nvml() == {"problem": "error", "detail": "up"}


def test_a_slow_start_of_the_probe_is_not_blamed_on_the_driver(tmp_path):
    (tmp_path / "pynvml.py").write_text("import time; time.sleep(60)\n")
    system = this_machine(PYTHONPATH=f"{tmp_path}{os.pathsep}{PATHS}")
    driver, _, _ = gpu_probe.probe(system)
    assert driver.state is DriverState.ERROR
    assert "busy machine" in driver.detail


def fake_nvml(**functions: object) -> types.SimpleNamespace:
    """A pynvml with one 3090, on which unknown functions are NotSupported."""

    class NVMLError(Exception):
        pass

    not_supported = type("NVMLError_NotSupported", (NVMLError,), {})

    def refuse(*_: object) -> None:
        raise not_supported("Not Supported")

    names = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda _: "card",
        "nvmlSystemGetDriverVersion": lambda: "580.126.09",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
        "nvmlDeviceGetName": lambda _: "NVIDIA GeForce RTX 3090",
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlMemory_v2": 2,
    }

    class Nvml(types.SimpleNamespace):
        def __getattr__(self, name: str) -> object:
            if name.startswith("nvmlDeviceGet"):
                return refuse
            raise AttributeError(name)

    return Nvml(NVMLError=NVMLError, **{**names, **functions})


def test_what_nvml_refuses_is_unknown_with_its_reason():
    answer = nvml_child.snapshot(fake_nvml())
    [card] = answer["gpus"]
    assert card["memory"] is None
    assert card["problems"]["memory"] == "NotSupported"
    assert (answer["driver"], answer["cuda"]) == ("580.126.09", 13010)


def test_a_pid_in_both_lists_is_one_process():
    holder = types.SimpleNamespace(pid=7, usedGpuMemory=100)
    nvml = fake_nvml(
        nvmlDeviceGetComputeRunningProcesses=lambda _: [holder],
        nvmlDeviceGetGraphicsRunningProcesses=lambda _: [holder],
    )
    [card] = nvml_child.snapshot(nvml)["gpus"]
    assert card["processes"] == [{"pid": 7, "kind": "compute+graphics", "used": 100}]


def test_drivers_without_the_second_memory_version_still_answer():
    def info(_: object, version: int | None = None) -> object:
        if version:
            raise TypeError("one argument")
        return types.SimpleNamespace(total=10, free=6, used=4)

    [card] = nvml_child.snapshot(fake_nvml(nvmlDeviceGetMemoryInfo=info))["gpus"]
    assert card["memory"] == {"total": 10, "free": 6, "used": 4, "reserved": 0}


def test_slices_of_a_divided_card_are_listed_with_their_parent():
    nvml = fake_nvml(
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 2,
        nvmlDeviceGetMigDeviceHandleByIndex=lambda _, number: f"slice{number}",
        nvmlDeviceGetMigMode=lambda _: [1, 1],
    )
    found = nvml_child.snapshot(nvml)["gpus"]
    assert [item["uuid"] for item in found] == ["GPU-card", "GPU-slice0", "GPU-slice1"]
    assert found[1]["parent_uuid"] == "GPU-card"


@pytest.mark.parametrize(("number", "version"), [(13000, (13, 0)), (12080, (12, 8)), (None, None)])
def test_cuda_versions_are_not_floats(number, version):
    assert gpu_probe.cuda_version(number) == version


def test_a_module_in_the_users_folder_does_not_shadow_ours(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    absent = str(tmp_path / "absent")
    answer = System(Environ({"PATH": "/usr/bin:/bin"})).measure("disk", absent, deadline_s=20)
    assert answer["problem"] == f"{absent}: No such file or directory"


LINK_NVML = """
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetCurrPcieLinkGeneration(handle): return 4
def nvmlDeviceGetCurrPcieLinkWidth(handle): return 16
"""


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory) -> Path:
    """A folder with a libcuda.so.1 and a pynvml for children to find."""
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run(
        [
            compiler,
            "-x",
            "c",
            "-O1",
            "-shared",
            "-fPIC",
            str(source),
            "-o",
            str(folder / "libcuda.so.1"),
        ],
        check=True,
    )
    (folder / "pynvml.py").write_text(LINK_NVML)
    return folder


def with_driver(folder: Path, **environ: str) -> System:
    paths = f"{folder}{os.pathsep}{PATHS}"
    return this_machine(PYTHONPATH=paths, LD_LIBRARY_PATH=str(folder), **environ)


def test_the_link_is_measured_through_the_driver_and_seen_while_it_copies(fake_driver):
    answer = with_driver(fake_driver).measure("h2d", "GPU-x", deadline_s=60, gpu="GPU-x")
    assert "problem" not in answer
    assert 1e8 < answer["bytes_per_s"] < 1e12
    assert 1e8 < answer["small_bytes_per_s"] < 1e12
    assert (answer["generation"], answer["width"]) == (4, 16)
    assert "pin_limit_bytes" not in answer


REPLAYS_NVML = """
asked = [0]
def nvmlDeviceGetPcieReplayCounter(handle):
    asked[0] += 1
    return 70 if asked[0] == 1 else 83
def nvmlDeviceGetCurrentClocksThrottleReasons(handle): return 0x40 if asked[0] < 3 else 0x4
"""


def test_packets_sent_again_and_slower_clocks_are_seen_while_it_copies(fake_driver):
    assert with_driver(fake_driver).measure("h2d", "GPU-x", deadline_s=60)["replays"] is None
    worse = fake_driver / "worse"
    worse.mkdir()
    (worse / "pynvml.py").write_text(LINK_NVML + REPLAYS_NVML)
    shutil.copy(fake_driver / "libcuda.so.1", worse)
    answer = with_driver(worse).measure("h2d", "GPU-x", deadline_s=60)
    assert (answer["replays"], answer["throttle"]) == (13, 0x44)


def test_T026_the_child_finds_the_pin_wall_by_blocks(fake_driver):
    system = with_driver(fake_driver, FAKE_PIN_BLOCKS="3")
    answer = system.measure("h2d", "GPU-x", "--wsl", deadline_s=60)
    assert answer["pin_limit_bytes"] == int(0.8 * (768 << 20))


def test_a_refused_pin_is_a_reason(fake_driver):
    answer = with_driver(fake_driver, FAKE_PIN_BLOCKS="0").measure("h2d", "GPU-x", deadline_s=60)
    assert answer["problem"] == "cuMemHostAlloc: CUDA error 2"
