"""Which GPU a selector means. A selector that matches nothing is an error; it never widens to all."""

from __future__ import annotations

from glm53ctl.errors import UsageError
from glm53ctl.hardware import Gpu


def select_gpu(gpus: tuple[Gpu, ...], selector: str | None) -> Gpu:
    """The GPU that `selector` names, or the one with most free VRAM.

    Selectors: an index in PCI order, a UUID or its beginning, a MIG UUID, or pci:01:00.0. Raises
    UsageError listing the cards when none or several match. `gpus` must not be empty.
    """
    if selector is None:
        whole = [gpu for gpu in gpus if not gpu.mig_enabled] or list(gpus)
        return max(whole, key=lambda gpu: (gpu.free_bytes or 0, -gpu.index))
    wanted = selector.strip()
    if "," in wanted:
        raise UsageError(
            f"{selector!r} names several GPUs; this server uses one", hint="choose one with --gpu"
        )
    matches = [gpu for gpu in gpus if _matches(gpu, wanted)]
    if len(matches) == 1:
        return matches[0]
    cards = ", ".join(f"{gpu.index} {gpu.uuid} {gpu.name}" for gpu in gpus)
    what = "no GPU" if not matches else f"{len(matches)} GPUs"
    raise UsageError(
        f"{selector!r} matches {what}", hint=f"this machine has: {cards}", error_id="GPU-005"
    )


def _matches(gpu: Gpu, wanted: str) -> bool:
    if wanted.isdigit():
        return gpu.index == int(wanted) and gpu.parent_uuid is None
    if wanted.lower().startswith("pci:"):
        return bool(gpu.address) and gpu.address.endswith(wanted[4:].lower())
    return gpu.uuid.lower().startswith(wanted.lower()) and len(wanted) >= 5
