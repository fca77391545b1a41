"""The settings table: every setting, its environment variable, its type and the Plan field it feeds.

The only file that reads the environment. Nothing else in the project may: the server gets a plan,
the probes get an `Environ`. Rows are the fields of `Settings`; `rows()` is the table for documents.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from glm53ctl.plan import Mode

GIB = 1 << 30
PREFIX = "GLM53_"


def setting(default: object, key: str, env: str, feeds: str, text: str, **number: int) -> Any:
    """One row: TOML key, environment name, the Plan field it feeds, one sentence.

    Of a number: `unit` multiplies it as the user writes it (GiB, GB/s) into base units; `least` and
    `most` bound it as written.
    """
    words = {"key": key, "env": env, "feeds": feeds, "text": text}
    return field(default=default, metadata={**words, "unit": 1, "least": 0, "most": None, **number})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, resolved. None means: not set, the planner chooses."""

    # fmt: off

    mode: Mode = setting(
        Mode.AUTO, "mode", "GLM53_MODE", "mode", "auto, fast, exact or cpu; auto takes the first that fits"
    )
    model: str = setting(
        "glm-5.3-flash", "model.name", "GLM53_MODEL", "model.path",
        "glm-5.3-flash, tiny, or the directory of a checkpoint",
    )
    model_dir: Path | None = setting(
        None, "model.dir", "GLM53_MODEL_DIR", "model.path",
        "directory of the GLM-5.3-Flash checkpoint, when it is not in the models directory",
    )
    models_dir: Path | None = setting(
        None, "model.models_dir", "GLM53_MODELS_DIR", "model.path", "where downloaded checkpoints are kept"
    )
    served_name: str | None = setting(
        None, "model.served_name", "GLM53_SERVED_NAME", "model.served_name", "model name shown to API clients"
    )
    context_tokens: int | None = setting(
        None, "model.context_tokens", "GLM53_CONTEXT_TOKENS", "model.context_tokens",
        "longest prompt plus answer, in tokens", least=256,
    )
    load_format: str = setting(
        "checkpoint", "model.load_format", "GLM53_LOAD_FORMAT", "model.load_format",
        "checkpoint, or dummy[:layers=N,experts=N] for speed tests without weights",
    )
    engine: Literal["stock", "scripted"] | None = setting(
        None, "engine", "GLM53_ENGINE", "engine", "stock: serve with unmodified exllamav3, for comparisons"
    )
    instance: str = setting(
        "default", "instance", "GLM53_INSTANCE", "-", "name of this server among several on one machine"
    )
    host: str = setting("127.0.0.1", "listen.host", "GLM53_HOST", "listen.host", "address to listen on")
    port: int = setting(8080, "listen.port", "GLM53_PORT", "listen.port", "port to listen on", most=65535)
    api_key_file: Path | None = setting(
        None, "listen.api_key_file", "GLM53_API_KEY_FILE", "listen.api_key_file",
        "file (mode 0600) that holds the API key; needed when listening beyond loopback",
    )
    gpu: str | None = setting(
        None, "gpu.select", "GLM53_GPU", "gpu.uuid", "GPU by index, UUID prefix, MIG UUID or pci:01:00.0"
    )
    vram_reserve_bytes: int | None = setting(
        None, "vram.reserve_gib", "GLM53_EC_RESERVE_GB", "gpu.reserve_bytes",
        "VRAM left free for the desktop and the driver, GiB", unit=GIB,
    )
    vram_elastic_bytes: int = setting(
        10 * GIB, "vram.elastic_gib", "GLM53_EC_ELASTIC_GB", "gpu.elastic_bytes",
        "part of the expert cache given back for long prefills, GiB", unit=GIB,
    )
    vram_stage_bytes: int = setting(
        int(2.6 * GIB), "vram.stage_gib", "GLM53_EC_STAGE_GB", "gpu.stage_bytes",
        "one of the two prefill staging buffers, GiB", unit=GIB,
    )
    vram_limit_bytes: int | None = setting(
        None, "vram.limit_gib", "GLM53_VRAM_LIMIT_GB", "gpu.vram_limit_bytes",
        "use at most this much of the card, GiB", unit=GIB,
    )
    ram_margin_bytes: int | None = setting(
        None, "ram.margin_gib", "GLM53_RAM_MARGIN_GB", "budgets",
        "RAM left to the rest of the machine, GiB", unit=GIB,
    )
    tier_cpus: str = setting(
        "auto", "cpu.cpus", "GLM53_CT_CPUS", "cpu.cpus", "CPUs of the compute pool: auto, or a list like 0-7,16"
    )
    tier_threads: int | None = setting(
        None, "cpu.threads", "GLM53_CT_THREADS", "cpu.threads", "threads of the compute pool", least=1,
    )
    tier_bytes_per_s: int | None = setting(
        None, "cpu.tier_gb_per_s", "GLM53_CT_B", "cpu_tier.bandwidth_bytes_per_s",
        "speed of the CPU tier, GB/s; measured at start when not set", unit=10**9,
    )
    tier_swizzled: bool = setting(
        True, "cpu.swizzled", "GLM53_CT_SWZ", "cpu_tier.swizzled",
        "accepted for old configurations; experts are kept once, in the file's order",
    )
    frozen_split: bool = setting(
        False, "cpu.frozen_split", "GLM53_FROZEN_SPLIT", "cpu_tier.frozen_split",
        "keep the CPU/GPU split of the start, for reproducible runs",
    )
    own_kernels: bool = setting(
        True, "cpu.own_kernels", "GLM53_OWN_KERNELS", "cpu_tier.own_kernels",
        "fast mode computes the GPU's experts with kernels of its own, beside the copies; false: with exllamav3's, after them",
    )
    triton_pin: bool = setting(
        True, "gpu.triton_pin", "GLM53_TRITON_PIN", "child_env",
        "keep Triton's and exllamav3's kernel choices between runs, so that two runs give the same bits",
    )
    lookahead_experts: int = setting(
        -1, "gpu.lookahead_experts", "GLM53_LOOKAHEAD", "gpu.lookahead_experts",
        "experts copied one layer ahead in decode (0: none, -1: as many as make the steps shortest)",
        least=-1,
    )
    max_batch: int = setting(
        4, "limits.max_batch", "GLM53_MAX_BATCH", "limits.max_batch", "streams decoded together", least=1,
    )
    cache_tokens: int | None = setting(
        None, "limits.cache_tokens", "GLM53_CACHE_TOKENS", "limits.cache_tokens",
        "attention cache shared by all streams, in tokens", least=256,
    )
    chunk_tokens: int | None = setting(
        None, "limits.chunk_tokens", "GLM53_CHUNK_TOKENS", "limits.chunk_tokens",
        "prefill chunk, in tokens; by default from the speed of the link", least=1,
    )
    max_queued: int = setting(
        64, "limits.max_queued", "GLM53_MAX_QUEUED", "limits.max_queued", "requests waiting before 429"
    )
    max_body_bytes: int = setting(
        32 << 20, "limits.max_body_mib", "GLM53_MAX_BODY_MB", "limits.max_body_bytes",
        "largest request body, MiB", unit=1 << 20,
    )
    root: Path | None = setting(
        None, "paths.root", "GLM53_ROOT", "-", "keep models, state and cache below this one directory"
    )
    doctor_ignore: tuple[str, ...] = setting(
        (), "doctor.ignore", "GLM53_DOCTOR_IGNORE", "-", "doctor checks that never block, by id"
    )
    mirrors: tuple[str, ...] = setting(
        (), "download.mirrors", "GLM53_MIRRORS", "-", "hubs to try for downloads, in this order"
    )
    # fmt: on


# Read outside the table because they name places or secrets, not settings of a plan.
OTHER_NAMES = {
    "GLM53_API_KEY": "the API key itself; prefer GLM53_API_KEY_FILE, an environment is easily leaked",
    "GLM53_PROFILE": "profile used when --profile is not given",
    "GLM53_CONFIG": "configuration file to read in place of the default one",
    "GLM53_FAKE_ROOT": "probe a recorded machine in this directory instead of this host",
}
FOREIGN_NAMES = {
    "HOME": "where the XDG defaults are",
    "XDG_CONFIG_HOME": "config.toml is in its glm53 folder",
    "XDG_STATE_HOME": "plans, locks and logs are in its glm53 folder",
    "XDG_CACHE_HOME": "kernel caches and measured rates are in its glm53 folder",
    "XDG_DATA_HOME": "checkpoints are in its glm53/models folder",
    "XDG_RUNTIME_DIR": "the control socket is in its glm53 folder",
    "HF_HOME": "where huggingface-hub keeps downloads",
    "HF_TOKEN": "token for the hub; never logged",
    "HF_ENDPOINT": "mirror of the hub",
    "HF_HUB_OFFLINE": "never use the network for checkpoints",
    "CUDA_VISIBLE_DEVICES": "which GPU to use when --gpu is not given",
    "DOCKER_HOST": "doctor says so when Docker is on another machine",
    "NO_COLOR": "no colour",
    "FORCE_COLOR": "colour even when output is not a terminal",
    "CLICOLOR": "0: no colour",
    "CLICOLOR_FORCE": "as FORCE_COLOR",
    "TERM": "dumb: no colour",
    "CI": "no live displays",
    "SUDO_USER": "whose home must not receive files owned by root",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the field of Settings, its TOML key, its names and what it is for."""

    field_name: str
    key: str
    env: str
    feeds: str
    text: str
    unit: int
    least: int
    most: int | None
    default: object

    @property
    def long_env(self) -> str:
        """The systematic name, GLM53_<SECTION>__<KEY>; both names are read, the short one wins."""
        return PREFIX + self.key.upper().replace(".", "__")

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable that gives this setting; the first that is set counts."""
        borrowed = ("CUDA_VISIBLE_DEVICES",) if self.key == "gpu.select" else ()
        return self.env, self.long_env, *borrowed


def rows() -> tuple[Row, ...]:
    """The table, in the order of `Settings`."""
    return tuple(Row(item.name, default=item.default, **item.metadata) for item in fields(Settings))


@dataclass(frozen=True, slots=True)
class Environ:
    """A snapshot of the environment. An empty variable counts as not set, as in compose files."""

    values: Mapping[str, str]

    @classmethod
    def current(cls) -> Environ:
        return cls(dict(os.environ))

    def get(self, name: str) -> str | None:
        return self.values.get(name) or None

    def flag(self, name: str) -> bool:
        """True for a variable that is set and does not say no."""
        return (self.get(name) or "0").lower() not in {"0", "false", "no", "off"}

    def settings(self) -> Iterator[tuple[Row, str]]:
        """Every setting the environment gives, with the name of the variable that does."""
        for row in rows():
            if name := next(filter(self.get, row.names), None):
                yield row, name

    def unknown_names(self) -> Iterator[tuple[str, str | None]]:
        """(name, nearest known name) of every GLM53_ variable that nothing reads."""
        known = {name for row in rows() for name in row.names} | set(OTHER_NAMES)
        for name in sorted(self.values):
            if name.startswith(PREFIX) and name not in known:
                yield name, nearest(name, known)


def nearest(word: str, known: set[str] | tuple[str, ...], *, alike: float = 0.7) -> str | None:
    """The known word a typo most likely meant: first one of swapped letters, then the most alike.

    `alike` is the least part, 0 to 1, that both must share.
    """
    found = difflib.get_close_matches(word, sorted(known), n=5, cutoff=alike)
    swapped = [item for item in found if sorted(item) == sorted(word)]
    return next(iter(swapped or found), None)


def without_hub_telemetry() -> None:
    """Tell huggingface-hub, before it is imported, to send nothing but requests."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
