"""Hatchling hook: build the native libraries, and add the data files that a real wheel carries.

An editable install reads profiles/ and reference/ from the checkout, so nothing is copied for it:
hatchling would put the copies into site-packages, where they shadow the checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_WHEEL_DATA = {
    "profiles": "glm53ctl/_profiles",
    "reference/tiny": "glm53ctl/_reference/tiny",
    "reference/tiny-ref-panel.json": "glm53ctl/_reference/tiny-ref-panel.json",
    "reference/tiny-digests.json": "glm53ctl/_reference/tiny-digests.json",
    **{
        f"bench/{name}.py": f"glm53ctl/_bench/{name}.py"
        for name in (
            *("wire", "score_ref_panel", "sweep", "stream_rate"),
            *("record_panel", "decode_kl"),
        )
    },
}


class KernelBuildHook(BuildHookInterface):
    """Called by hatchling before it collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        _build_stale_libraries(root)
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"
        for source, destination in _WHEEL_DATA.items():
            if (root / source).exists():
                build_data["force_include"][str(root / source)] = destination


def _build_stale_libraries(root: Path) -> None:
    sys.path.insert(0, str(root / "kernels"))
    try:
        from glm53_kernels.build import build_for_setup, wanted
        from glm53_kernels.sources import TARGETS, is_stale
    finally:
        sys.path.pop(0)
    for target in TARGETS:
        if wanted(target) and is_stale(target):
            build_for_setup(target)
