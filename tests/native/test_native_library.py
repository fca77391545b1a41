"""Finding, checking and building the library; the pool's manners."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import exl3_oracle as oracle
import numpy as np
import pytest
from native_cases import dequant

from glm53_kernels import (
    AbiMismatch,
    CpuKernels,
    KernelBuildFailed,
    LibraryMissing,
    StaleLibrary,
    _abi,
    sources,
)
from glm53_kernels._load import load
from glm53_kernels.build import build

ROOT = Path(__file__).resolve().parents[2]


def test_the_mirror_matches_the_header():
    check = [sys.executable, str(ROOT / "scripts/gen_abi.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0


def test_the_library_is_the_one_of_these_sources(library, open_kernels):
    built = library or sources.LIB / sources.CPU.library
    assert sources.library_hash(built) == open_kernels().build_id
    if library is None:
        assert open_kernels().build_id == sources.source_hash(sources.CPU)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The built library and its sources, copied to a folder that tests may spoil."""
    shutil.copytree(sources.CSRC, tmp_path / "csrc")
    (tmp_path / "lib").mkdir()
    shutil.copy(sources.LIB / sources.CPU.library, tmp_path / "lib")
    monkeypatch.setattr("glm53_kernels._load.LIB", tmp_path / "lib")
    monkeypatch.setattr("glm53_kernels._load.is_stale", lambda target: stale(target, tmp_path))
    return tmp_path


def stale(target: sources.Target, folder: Path) -> bool:
    return sources.library_hash(folder / "lib" / target.library) != sources.source_hash(
        target, folder / "csrc"
    )


def test_a_library_of_other_sources_is_refused(elsewhere):
    load(sources.CPU)
    kernel = elsewhere / "csrc/cpu/linear.cpp"
    kernel.write_text(kernel.read_text() + "// changed\n")
    with pytest.raises(StaleLibrary, match="make kernels"):
        load(sources.CPU)


def test_other_flags_make_a_library_stale():
    other = dataclasses.replace(sources.CPU, flags=(*sources.CPU.flags, "-g"))
    assert sources.source_hash(other) != sources.source_hash(sources.CPU)


def test_a_missing_or_broken_library_is_named(tmp_path):
    with pytest.raises(LibraryMissing, match=r"nothing\.so is not there.*make kernels"):
        load(sources.CPU, tmp_path / "nothing.so")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF no")
    with pytest.raises(LibraryMissing, match=r"broken\.so cannot be loaded"):
        load(sources.CPU, broken)


def test_bindings_of_another_abi_are_refused(library, monkeypatch):
    class Longer(ctypes.Structure):
        _fields_ = [*_abi.Linear._fields_, ("more", ctypes.c_uint64)]

    with monkeypatch.context() as patch:
        patch.setitem(_abi.STRUCTS, "glm53_linear", Longer)
        with pytest.raises(AbiMismatch, match="glm53_linear has 48 bytes there, 56 here"):
            load(sources.CPU, library)
    with monkeypatch.context() as patch:
        patch.setattr(_abi, "ABI_VERSION", 999)
        with pytest.raises(AbiMismatch, match="999"):
            load(sources.CPU, library)
    with monkeypatch.context() as patch:
        patch.setitem(_abi.FUNCTIONS, "glm53_cpu_fly", (ctypes.c_int, []))
        with pytest.raises(AbiMismatch, match="glm53_cpu_fly"):
            load(sources.CPU, library)


def test_a_build_without_a_compiler_says_what_to_install():
    with pytest.raises(KernelBuildFailed, match=r"no-such-compiler.*apt install g\+\+"):
        build(dataclasses.replace(sources.CPU, name="none", compilers=("no-such-compiler",)))


def test_a_build_that_fails_shows_the_compilers_words():
    with pytest.raises(KernelBuildFailed, match="no-such-flag"):
        build(dataclasses.replace(sources.CPU, name="none", flags=("--no-such-flag",)))
    assert not list(sources.LIB.glob("*none*"))


def test_the_package_imports_neither_numpy_nor_torch_and_loads_nothing():
    code = "import sys, glm53_kernels; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_workers_come_and_go_with_their_kernels(library):
    before = tasks()
    kernels = CpuKernels(threads=3, library=library)
    assert tasks() == before + 2
    kernels.close()
    assert tasks() == before
    forgotten = CpuKernels(threads=2, library=library)
    del forgotten
    assert tasks() == before


def test_workers_stay_on_their_cpus(library):
    cpus = sorted(os.sched_getaffinity(0))
    before = {task.name for task in Path("/proc/self/task").iterdir()}
    kernels = CpuKernels(cpus=[cpus[0], cpus[-1]], library=library)
    (worker,) = {task.name for task in Path("/proc/self/task").iterdir()} - before
    assert os.sched_getaffinity(int(worker)) == {cpus[-1]}
    assert os.sched_getaffinity(0) == set(cpus)
    kernels.close()


def test_callers_on_several_threads_are_served_one_after_the_other(open_kernels):
    kernels = open_kernels(threads=2)
    linears = [oracle.random_linear(np.random.default_rng(i), 256, 256, 3) for i in range(3)]
    wanted = [dequant(kernels, linear) for linear in linears]
    failures: list[int] = []

    def caller(index: int) -> None:
        for _ in range(10):
            same = (dequant(kernels, linears[index]) == wanted[index]).all()
            failures.extend([] if same else [index])

    callers = [threading.Thread(target=caller, args=(i,)) for i in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert failures == []


def test_only_an_optional_library_may_fail_during_an_installation(capsys):
    from dataclasses import replace

    from glm53_kernels import build as builder
    from glm53_kernels.errors import KernelBuildFailed
    from glm53_kernels.sources import CPU, CUDA

    broken = ("false",)  # a compiler that always fails
    builder.build_for_setup(replace(CUDA, compilers=broken))
    assert "libglm53_cuda.so was not built" in capsys.readouterr().err
    with pytest.raises(KernelBuildFailed):
        builder.build_for_setup(replace(CPU, compilers=broken))
