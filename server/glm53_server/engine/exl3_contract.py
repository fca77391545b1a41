"""What this project relies on in exllamav3, checked before anything is loaded. Fails closed.

The static half reads source files only (no import, no GPU): version, digests of the files whose
behaviour the adapter depends on, and the few lines it hooks. It names every difference found.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from pathlib import Path

PINNED_VERSION = "1.5.1"

# First 32 hex digits of the sha256 of each file of the pinned release, by path below the package.
PINNED_FILES = {
    "architecture/glm5_next.py": "680f95b2a090bc51e370664366e82227",
    "cache/cache.py": "b089cf18a672c1f6d7a6037bea57607b",
    "exllamav3_ext/cuda_host.cpp": "dc07184e5014d3b8c925e8e37cb4f6f0",
    "exllamav3_ext/libtorch/blocksparse_mlp.cpp": "7ecc3443d1a18ae5e83310938359572f",
    "exllamav3_ext/libtorch/blocksparse_mlp.h": "9907e908cfd1e4cac9994a97e791fd0c",
    "exllamav3_ext/libtorch/blocksparse_mlp_bc.h": "3dede625462ea40d8ba24b69309c64a6",
    "exllamav3_ext/quant/exl3_moe.cu": "19d1e89bc70267c6ecbaa716d77691ec",
    "exllamav3_ext/quant/exl3_moe.cuh": "86a28218028627b0a31bacdbf686564e",
    "exllamav3_ext/quant/exl3_moe_common.cuh": "05b787f3eb93e8c22b6d49cc89f4c194",
    "exllamav3_ext/quant/exl3_moe_coop.cu": "983a1198605fb01c6ea25f115793ed08",
    "exllamav3_ext/quant/exl3_moe_coop.cuh": "eb906f6e0fc45337736a67492cc64dcb",
    "exllamav3_ext/quant/exl3_moe_coop_kernel.cuh": "bdd49840d121bc9d298de296f4ed975d",
    "exllamav3_ext/quant/exl3_moe_kernel.cuh": "62f2609d00495a74cd64131d0dbafd69",
    "generator/generator.py": "5d9e5741fb297513118fe03830a71571",
    "generator/job.py": "4564b54b589fa045c9452f4e5e39cb30",
    "loader/safetensors.py": "062a3aca0286308149a5bfec077cee50",
    "model/model.py": "eab98d80b80d262bbc8253dc0951d804",
    "model/model_ls.py": "b66c561c68d83b635d36606cc59df223",
    "modules/block_sparse_mlp.py": "cdd08565e5a0bd5ca953afa9cb9226fb",
    "modules/block_sparse_mlp_cpu.py": "06b43d8348a8579d1aad8d4fc8d6429a",
    "modules/block_sparse_mlp_routing.py": "b878646d14cc4b7cb340de2c6e5e8d14",
    "modules/linear.py": "6e163d463ac8e93a033a120723bdc244",
    "modules/moe_batch_recon.py": "dfa7d2c1659dc341ede535668cbd45b1",
    "modules/multilinear.py": "8d8dd402f9a03c6cda253dd5b63378f7",
    "modules/quant/exl3.py": "3f285c0a34d4bee9bd1ccbbc47603625",
    "modules/transformer.py": "5442048492255575655283023c0627e6",
}

GET_TENSOR_PARAMETERS = [
    "self",
    "key",
    "device",
    "optional",
    "allow_bf16",
    "float2half",
    "no_defer",
    "transpose",
    "pad_to",
    "fidx",
]
FORWARD_CALLS_ONCE = ("routing_fn", "cpu_split_combine")


class UnsupportedExllamav3(RuntimeError):
    """The installed exllamav3 is not the one the adapter was written for; `differences` says how."""

    def __init__(self, differences: list[str]) -> None:
        shown = "; ".join(differences[:5])
        more = f" (and {len(differences) - 5} more)" if len(differences) > 5 else ""
        super().__init__(
            f"exllamav3 differs from the pinned {PINNED_VERSION}: {shown}{more}. "
            f"Install exactly exllamav3=={PINNED_VERSION}"
        )
        self.differences = differences


def _find_function(package: Path, path: str, class_name: str, name: str) -> ast.FunctionDef | None:
    """One method's syntax tree; None when the file, the class or the method is not there."""
    try:
        tree = ast.parse((package / path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    return item
    return None


def _calls(function: ast.FunctionDef, method: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
    ]


def _version_of(package: Path) -> str:
    try:
        text = (package / "version.py").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"__version__\s*=\s*[\"']([^\"']+)", text)
    return found.group(1) if found else "unknown"


def find_differences(package: Path) -> list[str]:
    """Compare an exllamav3 package folder with the pinned release; one sentence per difference."""
    differences: list[str] = []
    version = _version_of(package)
    if version != PINNED_VERSION:
        differences.append(f"version is {version}, pinned is {PINNED_VERSION}")
    for path, digest in PINNED_FILES.items():
        try:
            found = hashlib.sha256((package / path).read_bytes()).hexdigest()[: len(digest)]
        except OSError:
            differences.append(f"{path} is missing")
            continue
        if found != digest:
            differences.append(f"{path} has other contents ({found[:8]}, pinned {digest[:8]})")
    return differences + _find_hook_differences(package)


def _find_hook_differences(package: Path) -> list[str]:
    differences: list[str] = []
    get_tensor = _find_function(
        package, "loader/safetensors.py", "SafetensorsCollection", "get_tensor"
    )
    names = [a.arg for a in get_tensor.args.args] if get_tensor else []
    if names != GET_TENSOR_PARAMETERS:
        differences.append(f"SafetensorsCollection.get_tensor takes ({', '.join(names)})")
    load = _find_function(package, "modules/linear.py", "Linear", "load_exl3")
    trellis = [
        call
        for call in (_calls(load, "get_tensor") if load else [])
        if len(call.args) == 2 and ".trellis" in ast.unparse(call.args[0])
    ]
    if len(trellis) != 1:
        differences.append(f"Linear.load_exl3 fetches the trellis {len(trellis)} times, not once")
    forward = _find_function(package, "modules/block_sparse_mlp.py", "BlockSparseMLP", "forward")
    for method in FORWARD_CALLS_ONCE:
        count = len(_calls(forward, method)) if forward else 0
        if count != 1:
            differences.append(f"BlockSparseMLP.forward calls {method} {count} times, not once")
    return differences


def package_path() -> Path:
    """The installed exllamav3's folder, found without importing it."""
    spec = importlib.util.find_spec("exllamav3")
    if spec is None or spec.origin is None:
        raise UnsupportedExllamav3(["exllamav3 is not installed"])
    return Path(spec.origin).parent


def check_static(package: Path) -> None:
    """Raise UnsupportedExllamav3 unless the package is the pinned release."""
    differences = find_differences(package)
    if differences:
        raise UnsupportedExllamav3(differences)
