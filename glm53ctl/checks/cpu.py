"""CPU checks: cores we may use, instructions they have, and what a hypervisor hides."""

from __future__ import annotations

from glm53ctl.checks.base import Context, Finding, Fix, Spec, Status, passed, skipped, unknown
from glm53ctl.cpulist import format_cpulist
from glm53ctl.limits import AVX2_SET
from glm53ctl.words import counted

EXTRAS = ("avx512f", "avx512vbmi", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")
MASKED_MODELS = ("Common KVM processor", "QEMU Virtual CPU", "x86-64-v2-AES")
_VM_FIX = Fix(
    "give the virtual machine the host's CPU: type `host`, or at least `x86-64-v3`",
    ("qm set VMID --cpu host", "virsh edit NAME   # <cpu mode='host-passthrough'/>"),
)


def cores(context: Context) -> Finding:
    cpu = context.hardware.cpu
    if cpu.efficiency:
        text = f"{len(cpu.performance)} P + {len(cpu.efficiency)} E cores, E cores left alone"
    else:
        text = counted(len(cpu.performance), "core")
    text = f"{cpu.model_name}, {text}"
    if cpu.limited_by == "CFS quota" and cpu.quota_cpus is not None:
        text += f", {cpu.usable_cores} usable, limited by CFS quota ({cpu.quota_cpus:g} CPUs)"
    elif cpu.limited_by:
        text += f", limited by cpuset {format_cpulist(cpu.allowed)}"
    numbers = {"usable_cores": cpu.usable_cores, "performance_cores": len(cpu.performance)}
    if cpu.usable_cores < 4 and context.wants_gpu:
        return Finding(
            Status.WARN,
            text,
            fix=Fix("the CPU tier wants more; exact mode needs few"),
            numbers=numbers,
        )
    return Finding(Status.PASS, text, numbers=numbers, evidence=cpu.evidence)


def instructions(context: Context) -> Finding:
    cpu = context.hardware.cpu
    if cpu.architecture != "x86_64":
        return Finding(
            Status.FAIL, f"{cpu.architecture}", required="x86-64 with AVX2",
            fix=Fix("this build runs on x86-64 only"),
        )  # fmt: skip
    if not cpu.flags:
        return unknown("/proc/cpuinfo has no flags")
    missing = [flag for flag in AVX2_SET if flag not in cpu.flags]
    if not missing:
        extra = [flag.upper() for flag in EXTRAS if flag in cpu.flags]
        return passed(" ".join([*(flag.upper() for flag in AVX2_SET), *extra]))
    text = f"no {', '.join(flag.upper() for flag in missing)}"
    masked = cpu.hypervisor or any(name in cpu.model_name for name in MASKED_MODELS)
    if masked:
        text += f", CPU model masked by the hypervisor ({cpu.model_name})"
    fix = _VM_FIX if masked else Fix("the fast kernels need a CPU with AVX2 (2013 or later)")
    return Finding(
        Status.FAIL if context.wants_gpu else Status.WARN,
        text,
        required="AVX2, FMA and F16C",
        fix=fix,
        evidence=cpu.evidence,
    )


def self_test(context: Context) -> Finding:
    """What the kernels did when they ran; flags are only a promise."""
    cpu = context.hardware.cpu
    if cpu.self_test is None:
        return skipped("kernels not run")
    if cpu.self_test == "ok":
        return passed("the kernels run on this CPU")
    claimed = ", ".join(flag for flag in ("avx2", *EXTRAS) if flag in cpu.flags) or "nothing"
    return Finding(
        Status.FAIL,
        f"the kernels end with {cpu.self_test}, although the flags claim {claimed}",
        fix=_VM_FIX if cpu.hypervisor else Fix("please report this CPU", ("glm53ctl report",)),
    )


def governor(context: Context) -> Finding:
    found = context.hardware.cpu.governor
    if found is None:
        return skipped("no frequency control here")
    epp = context.system.read("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference")
    if found == "powersave" and epp is None:
        return Finding(
            Status.WARN,
            "governor powersave",
            fix=Fix("use all of the clock", ("sudo cpupower frequency-set -g performance",), True),
        )
    return passed(f"governor {found}")


def numa(context: Context) -> Finding:
    cpu = context.hardware.cpu
    with_cpus = [node for node in cpu.nodes if node.cpus]
    memory_only = [node for node in cpu.nodes if not node.cpus]
    text = f"{len(with_cpus)} NUMA node{'s' if len(with_cpus) != 1 else ''}"
    if memory_only:
        text += f", {len(memory_only)} memory-only"
    if len(with_cpus) > 1 and context.gpu is not None:
        node = context.gpu.numa_node
        text += f", GPU on node {node}" if node is not None else ", GPU's node unknown"
    return passed(text, cpu_nodes=len(with_cpus)) if cpu.nodes else skipped("no NUMA information")


SPECS = (
    Spec("CPU-001", "cores", "CPU", cores),
    Spec("CPU-002", "instructions", "CPU", instructions),
    Spec("CPU-003", "kernels", "CPU", self_test),
    Spec("CPU-004", "clock", "CPU", governor),
    Spec("CPU-005", "NUMA", "CPU", numa),
)
