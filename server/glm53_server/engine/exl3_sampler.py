"""Sampling parameters as an exllamav3 sampler stack."""

from __future__ import annotations

from typing import Any

from glm53_server.engine.base import Sampling


def make_sampler(sampling: Sampling) -> Any:
    """The smallest exllamav3 sampler stack for these parameters (neutral steps are left out)."""
    from exllamav3.generator.sampler import custom

    class InclusiveTopP(custom.SS_TopP):
        """Keeps the token that crosses p, as everybody defines top-p; 1.5.1's own step drops it."""

        def run(self, state: Any) -> None:
            before = state.probs.cumsum(dim=-1) - state.probs
            state.probs *= before < self.top_p
            state.state = custom.SS.PROBS_S

    steps: list[Any] = []
    if sampling.logit_bias:
        steps.append(custom.SS_LogitBias(dict(sampling.logit_bias)))
    if sampling.repetition_penalty != 1.0:
        steps.append(custom.SS_RepP(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        steps.append(custom.SS_PresFreqP(sampling.presence_penalty, sampling.frequency_penalty))
    if sampling.temperature == 0 or sampling.top_k == 1:
        return custom.CustomSampler([*steps, custom.SS_Argmax()])
    if sampling.temperature != 1.0:
        steps.append(custom.SS_Temperature(sampling.temperature))
    if sampling.min_p:
        steps.append(custom.SS_MinP(sampling.min_p))
    if sampling.top_k:
        steps.append(custom.SS_TopK(sampling.top_k))
    if sampling.top_p < 1.0:
        steps.append(InclusiveTopP(sampling.top_p))
    return custom.CustomSampler([*steps, custom.SS_Sample()])
