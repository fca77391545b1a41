"""From numbers to a verdict: quality first, then delivery, then speed against the prediction. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from glm53ctl.plan import Mode
from glm53ctl.predict import Prediction

OK, QUALITY_FAILED, BURSTY, SLOW, TAINTED = "ok", "quality failed", "bursty", "slow", "tainted"
INCOMPLETE = "incomplete"
SLOW_SHARE = 0.75  # of the low end of the prediction

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a panel must reach: mean KL in nats over the reference's top 20, share of same top-1."""

    mean_kl: float
    top1: float


# Another order of additions (another GPU, or a CPU) turns near-ties over. A damaged weight or a wrong
# kernel is orders of magnitude beyond this.
PANEL_BAR = Bar(1e-4, 0.99)
# Decoding with the CPU tier, against decoding without it.
DECODE_BAR = Bar(0.0055, 0.975)


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    why: str
    where: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 for an installation that answers wrongly, in bursts or with errors; advice has its own flag."""
        return 1 if self.name in {QUALITY_FAILED, BURSTY, INCOMPLETE} else 0

    @property
    def advice(self) -> bool:
        """True for what --strict turns into exit code 5."""
        return self.name in {SLOW, TAINTED}


def quality_words(panel: Facts | None, mode: Mode | None) -> str:
    """How a panel that passed compares. The GPU modes promise the very bits of stock exllamav3."""
    if panel is None:
        return "quality not checked: no panel"
    if mode not in {Mode.EXACT, Mode.FAST}:
        return "quality as expected"
    if panel["mean_kl_top20"] == 0 and panel["top1_agreement"] == 1:
        return "identical to the reference (KL 0, top-1 1.0)"
    kl = panel["mean_kl_top20"]
    return f"quality as expected, KL {kl:.2g} (0 only with the GPU model and the tuned kernels that recorded the panel)"


def panel_faults(panel: Facts | None) -> tuple[str, ...]:
    """What is wrong with a panel's score, prompts and positions named; empty when nothing is."""
    if panel is None:
        return ()
    if panel.get("error"):
        return (str(panel["error"]),)
    bar = PANEL_BAR
    kl, top1 = panel["mean_kl_top20"], panel["top1_agreement"]
    found: list[str] = []
    if panel["positions"] < panel["expected_positions"]:
        found.append(f"{panel['positions']} of {panel['expected_positions']} positions scored")
    if kl is None:
        found.append("log-probabilities that are no numbers")
    elif kl > bar.mean_kl:
        found.append(f"mean KL {kl:.3g} nats, the bar is {bar.mean_kl:g}")
    if top1 is None or top1 < bar.top1:
        found.append(f"top-1 agreement {top1}, the bar is {bar.top1:g}")
    if found:
        found += [_worst_words(panel)]
    return tuple(found)


def decode_verdict(found: Facts) -> Verdict:
    """The verdict on a document of decode_kl.py."""
    bar, control = DECODE_BAR, found["control_off"]
    if control["kl_max"] > 0:
        why = f"decoding differs from itself without the CPU tier: KL {control['kl_max']:.3g}"
        return Verdict(QUALITY_FAILED, why)
    if "kl_mean" not in found:
        return Verdict(OK, "this plan has no CPU tier, and decoding repeats itself exactly")
    kl, top1 = found["kl_mean"], found["top1_agree"]
    words = f"decode KL {kl:.4f} nats (bar {bar.mean_kl:g}), top-1 {top1:.4f} (bar {bar.top1:g})"
    good = kl <= bar.mean_kl and top1 >= bar.top1  # False for a KL that is no number
    return Verdict(OK if good else QUALITY_FAILED, words)


def _worst_words(panel: Facts) -> str:
    """`worst: prompt 3 (KL 0.8, top-1 0.41), at position 17 of its tokens`."""
    prompts = cast("list[Facts]", panel["per_prompt"])
    worst = max(prompts, key=lambda one: float("inf") if one["kl"] is None else one["kl"])
    kl = "not a number" if worst["kl"] is None else f"{worst['kl']:.3g}"
    top1 = "none" if worst["top1"] is None else f"{worst['top1']:.3f}"
    places = cast("list[Facts]", panel["worst"])
    place = f", worst at position {places[0]['position']} of prompt {places[0]['prompt']}"
    return f"prompt {worst['i']} most: KL {kl}, top-1 {top1}{place if places else ''}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is made from; parts that were not measured are None."""

    mode: Mode | None
    panel: Facts | None
    damaged: tuple[str, ...]  # tensors known to differ from the right ones
    stream: Facts | None
    decode_tokens_per_s: float | None
    prediction: Prediction | None
    taints: tuple[str, ...]  # of the phase that measured speed
    sweep_error: str | None = None  # what ended the sweep early


def decide(found: Evidence) -> Verdict:
    """Wrong answers outweigh bursts, and bursts outweigh speed."""
    faults = panel_faults(found.panel)
    if faults:
        return Verdict(QUALITY_FAILED, "; ".join(faults), found.damaged)
    if found.stream is not None and not found.stream["pass"]:
        return Verdict(BURSTY, _stream_words(found.stream))
    quality = quality_words(found.panel, found.mode)
    if found.sweep_error is not None:
        return Verdict(INCOMPLETE, f"{quality}; the sweep ended early: {found.sweep_error}")
    rate, prediction = found.decode_tokens_per_s, found.prediction
    if rate is None or prediction is None:
        return Verdict(OK, f"{quality}; no speed to compare with")
    speed = f"{rate:.1f} tok/s decode, {prediction.text} predicted"
    if rate >= SLOW_SHARE * prediction.low_tokens_per_s:
        nevertheless = ", although the machine was disturbed" if found.taints else ""
        return Verdict(OK, f"{quality}; {speed}{nevertheless}")
    if found.taints:
        why = f"{speed}: too slow, but the machine was disturbed, which may be why"
        return Verdict(TAINTED, f"{quality}; {why}", found.taints)
    limit = f"the prediction is limited by {prediction.limited_by}"
    return Verdict(SLOW, f"{quality}; {speed}", (limit,))


def _stream_words(stream: Facts) -> str:
    if stream.get("error"):
        return str(stream["error"])
    late = [one for one in cast("list[Facts]", stream["endpoints"]) if not one["pass"]]
    return "; ".join(
        f"{one['endpoint']} delivers in bursts: {one['half_share']:.0%} of the text in the first "
        f"half, {one['tail_share']:.0%} in the last second"
        for one in late
    )
