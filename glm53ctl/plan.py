"""The Plan: the one value that crosses from the control plane to the server process, as a JSON file.

Frozen; byte counts are ints; None means "not part of this plan". The server reads no environment
and asks nothing back: what is not in here, it does not know.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

from glm53ctl.errors import UsageError

SCHEMA = "glm53ctl.plan/1"


class Mode(StrEnum):
    """What the user chooses. AUTO exists only on the way to a plan, never in one."""

    AUTO = "auto"
    FAST = "fast"  # GPU + CPU tier, one copy of the experts in pinned RAM
    EXACT = "exact"  # GPU only arithmetic, bit-identical to stock exllamav3
    CPU = "cpu"  # no GPU: transformers on the CPU, experts from the trellis


class EngineName(StrEnum):
    EXL3 = "exl3"  # stock exllamav3 with our memory tiers
    STOCK = "stock"  # stock exllamav3 alone, the reference of comparisons
    CPU = "cpu"
    SCRIPTED = "scripted"  # a scripted engine for tests; never chosen by the planner


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What to serve. `path` is a checkpoint directory; `load_format` is "checkpoint" or "dummy[:k=v,...]"."""

    path: str
    served_name: str
    context_tokens: int
    load_format: str = "checkpoint"


@dataclass(frozen=True, slots=True)
class ListenPlan:
    """Where to serve. `api_key_file` holds the key; the key itself never enters a plan."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key_file: str | None = None


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """Host cores of the server: `cpus` are logical CPU numbers, `threads` the compute pool's size."""

    threads: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """One GPU by UUID, and how its memory is divided.

    `vram_limit_bytes` caps what we use (tests of a 24 GB card on a larger one); None is all of it.
    """

    uuid: str
    name: str
    reserve_bytes: int
    elastic_bytes: int
    stage_bytes: int
    vram_limit_bytes: int | None = None
    cache_slots: int | None = None  # None: sized from measured free VRAM after load
    lookahead_experts: int = (
        -1
    )  # copied one layer ahead in decode; -1: as many as make the steps shortest
    heat_file: str | None = None  # which experts earlier runs picked; the cache starts with them


@dataclass(frozen=True, slots=True)
class CpuTierPlan:
    """Fast mode's CPU tier. None for a field means: calibrate at start."""

    bandwidth_bytes_per_s: int | None = None  # GLM53_CT_B
    swizzled: bool = True  # GLM53_CT_SWZ
    frozen_split: bool = False
    own_kernels: bool = True  # the GPU's part by our kernels, beside the copies; else by stock's


@dataclass(frozen=True, slots=True)
class LimitsPlan:
    """Bounds of the server. Tokens are model tokens; `max_batch` is streams decoded together."""

    max_batch: int = 4
    cache_tokens: int = 65536
    chunk_tokens: int = 4096
    max_queued: int = 64
    max_body_bytes: int = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScriptPlan:
    """The scripted engine's behaviour, for tests of everything around an engine."""

    text: str = "<think></think>Hello from the scripted engine."
    tokens_per_s: float = 200.0
    start_delay_s: float = 0.0
    crash_after_tokens: int | None = None
    hang_after_tokens: int | None = None
    exit_code_at_start: int | None = None
    ignore_sigterm: bool = False
    burst: bool = False  # deliver everything at the end


@dataclass(frozen=True, slots=True)
class Choice:
    """One automatic decision and why it was taken; `origin` is the settings layer it came from."""

    key: str
    value: str
    why: str
    origin: str = "auto"


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes one consumer takes from one pool ("ram", "vram", "disk")."""

    pool: str
    name: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    mode: Mode
    engine: EngineName
    model: ModelPlan
    listen: ListenPlan
    cpu: CpuPlan
    limits: LimitsPlan = field(default_factory=LimitsPlan)
    gpu: GpuPlan | None = None
    cpu_tier: CpuTierPlan | None = None
    script: ScriptPlan | None = None
    child_env: tuple[tuple[str, str], ...] = ()  # what libraries must see before import
    choices: tuple[Choice, ...] = ()
    budgets: tuple[Budget, ...] = ()
    schema: str = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def fingerprint(self) -> str:
        """12 hex digits that are equal exactly when two plans would run the same server.

        Reasons and budgets explain a plan; they do not change what it runs.
        """
        body = asdict(self)
        body.pop("choices")
        body.pop("budgets")
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def url(self) -> str:
        """A URL a human can open: wildcard binds are shown as loopback."""
        host = self.listen.host
        if host in {"0.0.0.0", "::", ""}:
            host = "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.listen.port}"


def plan_from_json(text: str, *, source: str = "plan") -> Plan:
    """Parse a plan file. Raises UsageError naming the field or the schema that does not match."""
    from pydantic import TypeAdapter, ValidationError  # 45 ms that `--help` need not pay

    again = "run `glm53ctl up` again: it writes a new plan"
    try:
        body: object = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise UsageError(f"{source} is not JSON: {err}", hint=again) from err
    if not isinstance(body, dict):
        raise UsageError(f"{source} is not a JSON object", hint=again)
    found = cast("dict[str, object]", body).get("schema")
    if found != SCHEMA:
        raise UsageError(
            f"{source} has schema {found!r}, this version reads {SCHEMA!r}", hint=again
        )
    try:
        return TypeAdapter(Plan).validate_json(text, extra="forbid")
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{source}: {where}: {first['msg']}") from err


def read_plan(path: Path) -> Plan:
    """Read a plan file. Raises UsageError when it cannot be read or does not match the schema."""
    try:
        return plan_from_json(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as err:
        raise UsageError(f"cannot read the plan {path}: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise UsageError(f"cannot read the plan {path}: {err}") from err
