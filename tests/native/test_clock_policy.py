"""The cache decision in C++ against its slow twin, over random lives of a cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from clock_model import Decision, Ring, Step, apply, decide
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm53_kernels import BadArgument, CpuKernels, _abi
from glm53_kernels._load import Library

Native = Callable[[Ring, Step], Decision]
FIXTURES = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def bits_of(members: set[int], slots: int) -> np.ndarray:
    words = np.zeros((slots + 31) // 32, np.uint32)
    for slot in members:
        words[slot // 32] |= np.uint32(1 << slot % 32)
    return words


def members_of(bits: np.ndarray) -> set[int]:
    return {32 * w + b for w, word in enumerate(bits.tolist()) for b in range(32) if word >> b & 1}


def int32(values: list[int | None]) -> np.ndarray:
    return np.array([-1 if value is None else value for value in values], np.int32)


def call(library: Library, ring: Ring, step: Step) -> Decision:
    """One native step; `ring` gets its marks and hand, as the model's gets from decide()."""
    slots, n = len(ring.owner), len(step.picks)
    arrays = {
        "picks": int32(list(step.picks)),
        "resident": int32(list(step.resident)),
        "priority": np.array(step.priority, np.uint32),
        "owner": int32(ring.owner),
        "referenced": bits_of(ring.referenced, slots),
        "busy": bits_of(ring.locked, slots),
        "hand": np.array([ring.hand], np.int32),
        "admissions": np.full((max(1, n), 3), -99, np.int32),
        "result": np.full(5, -99, np.int32),
    }
    before = {name: arrays[name].copy() for name in ("picks", "resident", "priority", "owner")}
    args = _abi.ClockStepArgs(
        size=ctypes.sizeof(_abi.ClockStepArgs), num_picks=n, experts=step.experts, slots=slots,
        admit_limit=step.admit_limit, gpu_share=step.gpu_share, dither=step.dither,
        **{name: array.ctypes.data for name, array in arrays.items()},
    )  # fmt: skip
    library.call("glm53_cpu_clock_step", ctypes.byref(args))
    for name, array in before.items():
        assert (arrays[name] == array).all(), f"{name} was written"
    hits, admitted, evicted, left, invalid = arrays["result"].tolist()
    rows = arrays["admissions"][:admitted].tolist()
    assert (arrays["admissions"][admitted:] == -99).all()
    ring.referenced = members_of(arrays["referenced"])
    ring.hand = int(arrays["hand"][0])
    found = Decision(
        hits, invalid, left,
        tuple((expert, slot, None if key < 0 else key) for expert, slot, key in rows),
        frozenset(members_of(arrays["busy"])),
    )  # fmt: skip
    assert found.evicted == evicted
    return found


@pytest.fixture
def native(open_kernels: Callable[..., CpuKernels]) -> Native:
    library = open_kernels().library
    return lambda ring, step: call(library, ring, step)


@dataclass(frozen=True, slots=True)
class Life:
    """A cache and what happens to it: (layer, picks, limits) or a slot range locked or unlocked."""

    layers: int
    experts: int
    slots: int
    events: tuple[tuple[int, tuple[int, ...], int, float, float, tuple[int, int] | None], ...]


@st.composite
def lives(draw: st.DrawFn) -> Life:
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(1, 24))
    slots = draw(
        st.integers(1, 4) | st.integers(1, 70)
    )  # small ones fill up, large ones have words
    event = st.tuples(
        st.integers(0, layers - 1),
        st.lists(st.integers(-2, experts + 1), max_size=32).map(tuple),
        st.integers(0, 12),
        st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.77, 1.0]),
        st.floats(0, 1, width=32, exclude_max=True, allow_subnormal=False),
        st.none() | st.tuples(st.integers(0, slots - 1), st.integers(0, slots - 1)),
    )
    return Life(layers, experts, slots, draw(st.lists(event, max_size=25).map(tuple)))


def lock(ring: Ring, first: int, last: int) -> None:
    """Prefill takes the slots from first to last, or gives back all it had."""
    ring.locked = set(range(first, last + 1))
    for slot in ring.locked:
        ring.owner[slot] = None
    ring.referenced -= ring.locked


def residence(ring: Ring, base: int, picks: tuple[int, ...], experts: int) -> list[int | None]:
    slot_of = {key: slot for slot, key in enumerate(ring.owner) if key is not None}
    return [slot_of.get(base + pick) if 0 <= pick < experts else None for pick in picks]


@FIXTURES
@given(life=lives(), data=st.data())
def test_a_life_of_a_cache_goes_as_the_model_says(native: Native, life: Life, data) -> None:
    ring = Ring([None] * life.slots)
    for layer, picks, limit, share, dither, locked in life.events:
        if locked is not None:
            lock(ring, *locked)
        base = layer * life.experts
        priority = data.draw(
            st.lists(st.integers(0, 3), min_size=len(picks), max_size=len(picks)), label="priority"
        )
        step = Step(picks, residence(ring, base, picks, life.experts), priority, life.experts, limit, share, dither)  # fmt: skip
        twin = ring.copy()
        expected, found = decide(twin, step), native(ring, step)
        assert found == expected
        assert (ring.referenced, ring.hand) == (twin.referenced, twin.hand)
        check_invariants(ring, step, found)
        apply(ring, found, base)
        held = [key for key in ring.owner if key is not None]
        assert len(held) == len(set(held)), "one expert has two slots"


def check_invariants(ring: Ring, step: Step, found: Decision) -> None:
    """What must hold whatever the model thinks."""
    taken = [slot for _, slot, _ in found.admissions]
    read = {slot for slot in step.resident if slot is not None}
    assert len(taken) == len(set(taken)), "one slot was given twice"
    assert not set(taken) & (ring.locked | read), "a slot in use gave way"
    assert found.busy == ring.locked | read | set(taken)
    assert read <= ring.referenced, "a hit earned no second chance"
    assert not set(taken) & ring.referenced, "a newcomer starts with a second chance"
    experts = [expert for expert, _, _ in found.admissions]
    missed = {p for p, r in zip(step.picks, step.resident, strict=True) if r is None and 0 <= p < step.experts}  # fmt: skip
    assert len(experts) == len(set(experts))
    assert set(experts) <= missed
    assert len(experts) + found.left == len(missed)
    assert len(experts) <= step.admit_limit
    assert 0 <= ring.hand < len(ring.owner)


def step_of(picks: list[int], resident: list[int | None] | None = None, **changes) -> Step:
    step = Step(
        picks, resident or [None] * len(picks), [0] * len(picks), experts=64, admit_limit=64
    )
    return replace(step, **changes)


def test_duplicates_are_one_miss_and_one_hit(native: Native) -> None:
    ring = Ring([5, None, None])
    found = native(ring, step_of([7, 5, 7, 5, 7], [None, 0, None, 0, None]))
    assert (found.hits, found.left) == (1, 0)
    assert found.admissions == ((7, 1, None),) or found.admissions == ((7, 2, None),)


def test_ids_outside_the_layer_are_counted_and_nothing_else(native: Native) -> None:
    ring = Ring([None] * 4)
    found = native(ring, step_of([-1, 64, 2**31 - 1, -(2**31), 3]))
    assert (found.invalid, found.hits, found.left) == (4, 0, 0)
    assert [expert for expert, _, _ in found.admissions] == [3]


def test_the_hotter_miss_comes_first_and_equals_keep_their_order(native: Native) -> None:
    ring = Ring([None] * 8)
    found = native(ring, step_of([10, 11, 12, 13], priority=[1, 5, 5, 9], admit_limit=3))
    assert [expert for expert, _, _ in found.admissions] == [13, 11, 12]
    assert found.left == 1


def test_priorities_are_unsigned(native: Native) -> None:
    found = native(Ring([None]), step_of([1, 2], priority=[5, 2**32 - 1], admit_limit=1))
    assert found.admissions == ((2, 0, None),)


@pytest.mark.parametrize(
    ("share", "dither", "admitted"),
    [(1.0, 0.0, 5), (0.5, 0.0, 2), (0.5, 0.5, 3), (0.0, 0.999, 0), (0.1, 0.49, 0), (0.1, 0.5, 1)],
)
def test_the_share_is_rounded_with_the_dither(native: Native, share, dither, admitted) -> None:
    found = native(Ring([None] * 8), step_of([1, 2, 3, 4, 5], gpu_share=share, dither=dither))
    assert (len(found.admissions), found.left) == (admitted, 5 - admitted)


def test_a_limit_of_zero_admits_nothing_and_still_marks_hits(native: Native) -> None:
    ring = Ring([1, 2])
    found = native(ring, step_of([1, 9], [0, None], admit_limit=0))
    assert (found.hits, found.left, found.admissions) == (1, 1, ())
    assert ring.referenced == {0}


@pytest.mark.parametrize("slots", [1, 31, 32, 33, 64])
def test_no_victim_when_every_slot_is_in_use(native: Native, slots) -> None:
    ring = Ring(list(range(slots)), referenced={0}, locked=set(range(slots)), hand=slots - 1)
    found = native(ring, step_of([60, 61], experts=1000))
    assert (found.admissions, found.left) == ((), 2)
    assert ring.referenced == {0}, "a search without a victim took a second chance away"
    assert ring.hand == slots - 1


def test_the_hand_wraps_and_goes_on_where_it_was(native: Native) -> None:
    ring = Ring([None] * 5, hand=3)
    slots = []
    for expert in range(5):
        found = native(ring, step_of([expert]))
        apply(ring, found, 0)
        slots.append(found.admissions[0][1])
    assert slots == [3, 4, 0, 1, 2]


def test_a_repeated_expert_outlives_a_run_of_one_time_experts(native: Native) -> None:
    """The second chance: what is picked again each round is never evicted by strangers."""
    slots = 6
    ring = Ring([None] * slots)
    apply(ring, native(ring, step_of([0])), 0)
    for stranger in range(1, 50):
        picks = (0, stranger)
        found = native(ring, Step(picks, residence(ring, 0, picks, 64), [0, 0], 64, 8))
        assert found.hits == 1, f"expert 0 was gone after {stranger} strangers"
        apply(ring, found, 0)


def test_an_unmarked_slot_goes_before_a_marked_one_and_marks_last_one_round(native: Native) -> None:
    ring = Ring([10, 11, 12], referenced={0, 1})
    assert native(ring, step_of([1])).admissions == ((1, 2, 12),)
    assert ring.referenced == set()
    assert ring.hand == 0


@pytest.mark.parametrize("hand", [0, 3, 35])
def test_with_every_slot_marked_the_first_gives_way_after_a_round(native: Native, hand) -> None:
    ring = Ring(list(range(100, 136)), referenced=set(range(36)), hand=hand)
    assert native(ring, step_of([1])).admissions == ((1, hand, 100 + hand),)
    assert ring.referenced == set()
    assert ring.hand == (hand + 1) % 36


def test_256_picks_fit_and_257_do_not(native: Native) -> None:
    many = step_of(list(range(256)), experts=1000, admit_limit=256)
    assert len(native(Ring([None] * 300), many).admissions) == 256
    with pytest.raises(BadArgument, match="num_picks"):
        native(Ring([None] * 300), step_of(list(range(257)), experts=1000))


def test_no_slots_are_refused_here(native: Native) -> None:
    with pytest.raises(BadArgument, match="slots is 0"):
        native(Ring([]), step_of([1]))
