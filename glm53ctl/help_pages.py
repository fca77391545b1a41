"""The topic pages of `glm53ctl help`, generated from the tables that the code uses."""

from __future__ import annotations

from collections.abc import Iterator

from glm53ctl import env, profile
from glm53ctl.env import Environ
from glm53ctl.errors import EXIT_CODES
from glm53ctl.paths import Paths, profiles_dir, tiny_checkpoint
from glm53ctl.render import columns

MODES = (
    ("fast", "GPU and CPU share the experts that VRAM cannot hold. One copy in RAM; needs AVX2."),
    ("exact", "GPU arithmetic only, bit-identical to stock exllamav3. One copy in pinned RAM."),
    ("cpu", "No GPU: the whole model on the CPU. Meant for small checkpoints such as tiny."),
    (
        "auto",
        "fast, exact or cpu: the first that fits, exact where it is predicted to be no slower.",
    ),
)


def exit_codes() -> Iterator[str]:
    """Exit codes, and which of them a service manager must not answer with a restart."""
    yield "exit codes"
    yield from columns([(str(code), text) for code, text in EXIT_CODES])
    yield ""
    yield "a systemd unit wants RestartPreventExitStatus=2 4 6 7 9"


def environment() -> Iterator[str]:
    """Every variable that is read, with the setting it feeds."""
    yield "settings: flags win over these, these win over config.toml, that over the profile"
    yield from columns([(row.env, row.key, row.text) for row in env.rows()])
    yield "  every key is also read as GLM53_<SECTION>__<KEY>, for example GLM53_LISTEN__PORT"
    yield "other variables of ours"
    yield from columns(list(env.OTHER_NAMES.items()))
    yield "variables of others that are honoured"
    yield from columns(list(env.FOREIGN_NAMES.items()))


def files() -> Iterator[str]:
    """Where things are for this user, with these settings."""
    environ = Environ.current()
    found: Paths = profile.paths_for(profile.load_anyway({}, environ=environ), environ)
    yield "files"
    yield from columns(
        [
            ("settings", str(found.config_file)),
            ("state, plans, logs", f"{found.state_dir}/<instance>/"),
            ("control socket", str(found.runtime_dir)),
            ("kernel caches", str(found.cache_dir)),
            ("checkpoints", str(found.models_dir)),
            ("profiles", str(profiles_dir())),
            ("bundled tiny checkpoint", str(tiny_checkpoint())),
        ]
    )


def modes() -> Iterator[str]:
    """What each mode does."""
    yield "modes"
    yield from columns(list(MODES))
