"""What a user asked for that the plan does not use. Said instead of passed over; pure."""

from __future__ import annotations

from collections.abc import Iterator

from glm53ctl.plan import Plan
from glm53ctl.profile import Profile


def unused(plan: Plan, profile: Profile) -> Iterator[str]:
    """One warning for each setting that the plan had to cut or to leave out."""
    settings = profile.settings
    asked, got = settings.context_tokens, plan.model.context_tokens
    if asked is not None and asked > got:
        where = profile.origins["model.context_tokens"].where
        cached = got == plan.limits.cache_tokens
        why = (
            "what the cache holds (--cache-tokens)" if cached else "all that the model was made for"
        )
        yield f"{where} {asked}: the context is {got} tokens, {why}"
    if settings.gpu is not None and plan.gpu is None:
        where = profile.origins["gpu.select"].where
        yield f"{where} {settings.gpu} is not used: this plan runs on the CPU"
