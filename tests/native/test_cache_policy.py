"""The cache decision in C++ against its slow twin, over random lives of a cache."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from cache_model import (
    HALF_LIFE,
    MOST_HEAT,
    ONE_PICK,
    WINDOW,
    Decision,
    Heat,
    Ring,
    Step,
    aged,
    apply,
    decide,
    resident,
)

from glm53_kernels import BadArgument, CpuKernels, _abi
from glm53_kernels._load import Library

Native = Callable[..., Decision]


def bits_of(members: set[int], slots: int) -> np.ndarray:
    words = np.zeros((slots + 31) // 32, np.uint32)
    for slot in members:
        words[slot // 32] |= np.uint32(1 << slot % 32)
    return words


def members_of(bits: np.ndarray) -> set[int]:
    return {32 * w + b for w, word in enumerate(bits.tolist()) for b in range(32) if word >> b & 1}


def int32(values: list[int | None]) -> np.ndarray:
    return np.array([-1 if value is None else value for value in values], np.int32)


def heat_arrays(heat: Heat, keys: int) -> tuple[np.ndarray, np.ndarray]:
    values, last = np.zeros(keys, np.uint32), np.zeros(keys, np.uint32)
    for key, (value, step) in heat.known.items():
        values[key], last[key] = value, step
    return values, last


def call(library: Library, ring: Ring, step: Step, measured: int = 0) -> Decision:
    """One native step; `ring` gets its heat and hand, as the model's gets from decide()."""
    slots, n = len(ring.owner), len(step.picks)
    keys = max([0, *(key for key in ring.owner if key is not None)])
    heat, last = heat_arrays(ring.heat, max(keys + 1, (step.layer + 1) * step.experts, *ring.heat.known, 0) + 1)  # fmt: skip
    arrays = {
        "picks": int32(list(step.picks)),
        "resident": int32(resident(ring, step) if slots else []),
        "owner": int32(ring.owner),
        "heat": heat,
        "last": last,
        "busy": bits_of(ring.locked, slots),
        "hand": np.array([ring.hand], np.int32),
        "admissions": np.full((max(1, n), 3), -99, np.int32),
        "result": np.full(5, -99, np.int32),
    }
    before = {name: array.copy() for name, array in arrays.items()}
    args = _abi.CacheStepArgs(
        size=ctypes.sizeof(_abi.CacheStepArgs), num_picks=n, layer=step.layer, experts=step.experts,
        slots=slots, admit_limit=step.admit_limit, gpu_share=step.gpu_share, dither=step.dither,
        now=step.now, lookahead=step.lookahead, measured=measured,
        **{name: array.ctypes.data for name, array in arrays.items()},
    )  # fmt: skip
    library.call("glm53_cpu_cache_step", ctypes.byref(args))
    for name in ("picks", "resident", "owner"):
        assert (arrays[name] == before[name]).all(), f"{name} was written"
    hits, admitted, evicted, left, invalid = arrays["result"].tolist()
    rows = arrays["admissions"][:admitted].tolist()
    assert (arrays["admissions"][admitted:] == -99).all()
    changed = (heat != before["heat"]) | (last != before["last"])
    for key in np.flatnonzero(changed).tolist():
        ring.heat.known[key] = int(heat[key]), int(last[key])
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
    return partial(call, open_kernels().library)


@dataclass(frozen=True, slots=True)
class Event:
    """A step, or a guess, some decode steps after the one before; first the slots `locked` are locked."""

    layer: int
    picks: tuple[int, ...]
    limit: int
    share: float
    dither: float
    later: int
    lookahead: bool
    locked: tuple[int, int] | None
    measured: int  # so many percent of the slots are measured before


@dataclass(frozen=True, slots=True)
class Life:
    """A cache and what happens to it."""

    layers: int
    experts: int
    slots: int
    start: int
    events: tuple[Event, ...]


def life_of(seed: int) -> Life:
    """A random life; small caches fill up, large ones have several words of bits and several windows."""
    chance = random.Random(seed)
    layers, experts = chance.randint(1, 3), chance.randint(1, 40)
    slots = chance.randint(1, chance.choice([4, 20, 70]))

    def event() -> Event:
        picks = [chance.randint(-2, experts + 1) for _ in range(chance.choice([0, 3, 8, 32]))]
        ends = sorted((chance.randrange(slots), chance.randrange(slots)))
        return Event(
            layer=chance.randrange(layers),
            picks=tuple(picks),
            limit=chance.choice([0, 1, 3, 12]),
            share=chance.choice([0.0, 0.1, 0.25, 0.5, 0.77, 1.0, 1.0]),
            dither=float(np.float32(chance.random() * 0.999)),
            later=chance.choice([0, 0, 1, 1, 1, 3, 63, 64, 200, 5000]),
            lookahead=chance.random() < 0.2,
            locked=chance.choice([None, None, None, (ends[0], ends[1])]),
            measured=chance.choice([0, 30, 100]),
        )

    start = chance.choice([0, 2**32 - 3])  # the count of steps may wrap
    return Life(layers, experts, slots, start, tuple(event() for _ in range(30)))


def lock(ring: Ring, first: int, last: int) -> None:
    """Prefill takes the slots from first to last, or gives back all it had."""
    ring.locked = set(range(first, last + 1))
    for slot in ring.locked:
        ring.owner[slot] = None


@pytest.mark.parametrize("seed", range(200))
def test_a_life_of_a_cache_goes_as_the_model_says(native: Native, seed: int) -> None:
    life = life_of(seed)
    ring, now = Ring([None] * life.slots), life.start
    for event in life.events:
        now = (now + event.later) % 2**32
        if event.locked is not None:
            lock(ring, *event.locked)
        step = Step(event.layer, event.picks, now, life.experts, event.limit, event.share, event.dither, event.lookahead)  # fmt: skip
        twin, before = ring.copy(), ring.copy()
        expected = decide(twin, step)
        found = native(ring, step, event.measured * life.slots // 100)
        assert found == expected
        assert (ring.heat, ring.hand) == (twin.heat, twin.hand)
        check_invariants(before, ring, step, found)
        apply(ring, found, event.layer * life.experts)
        held = [key for key in ring.owner if key is not None]
        assert len(held) == len(set(held)), "one expert has two slots"


def check_invariants(before: Ring, ring: Ring, step: Step, found: Decision) -> None:
    """What must hold whatever the model thinks."""
    taken = [slot for _, slot, _ in found.admissions]
    places = resident(before, step)
    read = {slot for slot in places if slot is not None}
    assert len(taken) == len(set(taken)), "one slot was given twice"
    assert not set(taken) & (ring.locked | read), "a slot in use gave way"
    assert found.busy == ring.locked | read | set(taken)
    experts = [expert for expert, _, _ in found.admissions]
    missed = {p for p, r in zip(step.picks, places, strict=True) if r is None and 0 <= p < step.experts}  # fmt: skip
    assert len(experts) == len(set(experts))
    assert set(experts) <= missed
    assert len(experts) + found.left == len(missed)
    assert len(experts) <= step.admit_limit
    assert 0 <= ring.hand < len(ring.owner)
    picked = {key for pick in step.picks if (key := step.key(pick)) is not None}
    if step.lookahead:
        assert ring.heat == before.heat, "a guess counted as a pick"
    else:
        for key in picked:
            assert ring.heat.known[key][1] == step.now
            assert ring.heat.now(key, step.now) > before.heat.now(key, step.now) or (
                ring.heat.now(key, step.now) == MOST_HEAT
            )


def step_of(picks: list[int], now: int = 0, **changes) -> Step:
    return replace(Step(0, picks, now, experts=64, admit_limit=64), **changes)


def warm(**picks: int) -> Heat:
    """Heat of keys k5=..., in picks of step 0."""
    return Heat({int(name[1:]): (ONE_PICK * count, 0) for name, count in picks.items()})


def test_duplicates_are_one_miss_and_one_hit_and_all_of_them_heat(native: Native) -> None:
    ring = Ring([5, None, None])
    found = native(ring, step_of([7, 5, 7, 5, 7]))
    assert (found.hits, found.left) == (1, 0)
    assert found.admissions == ((7, 1, None),)
    assert ring.heat == warm(k5=2, k7=3)


def test_ids_outside_the_layer_are_counted_and_nothing_else(native: Native) -> None:
    ring = Ring([None] * 4)
    found = native(ring, step_of([-1, 64, 2**31 - 1, -(2**31), 3]))
    assert (found.invalid, found.hits, found.left) == (4, 0, 0)
    assert [expert for expert, _, _ in found.admissions] == [3]
    assert set(ring.heat.known) == {3}


def test_the_hotter_miss_comes_first_and_equals_keep_their_order(native: Native) -> None:
    ring = Ring([None] * 8, heat=warm(k10=1, k11=5, k12=5, k13=9))
    found = native(ring, step_of([10, 11, 12, 13], admit_limit=3))
    assert [expert for expert, _, _ in found.admissions] == [13, 11, 12]
    assert found.left == 1


def test_a_guess_is_taken_in_its_own_order(native: Native) -> None:
    ring = Ring([None] * 8, heat=warm(k10=1, k11=5))
    found = native(ring, step_of([12, 10, 11], admit_limit=2, lookahead=True))
    assert [expert for expert, _, _ in found.admissions] == [12, 10]
    assert ring.heat == warm(k10=1, k11=5)


@pytest.mark.parametrize(
    ("share", "dither", "admitted"),
    [(1.0, 0.0, 5), (0.5, 0.0, 2), (0.5, 0.5, 3), (0.0, 0.999, 0), (0.1, 0.49, 0), (0.1, 0.5, 1)],
)
def test_the_share_is_rounded_with_the_dither(native: Native, share, dither, admitted) -> None:
    found = native(Ring([None] * 8), step_of([1, 2, 3, 4, 5], gpu_share=share, dither=dither))
    assert (len(found.admissions), found.left) == (admitted, 5 - admitted)


def test_a_limit_of_zero_admits_nothing_and_still_heats(native: Native) -> None:
    ring = Ring([1, 2])
    found = native(ring, step_of([1, 9], admit_limit=0))
    assert (found.hits, found.left, found.admissions) == (1, 1, ())
    assert (ring.heat, ring.hand) == (warm(k1=1, k9=1), 0)


@pytest.mark.parametrize("slots", [1, 31, 32, 33, 64])
def test_no_victim_when_every_slot_is_in_use(native: Native, slots) -> None:
    ring = Ring(list(range(slots)), locked=set(range(slots)), hand=slots - 1)
    found = native(ring, step_of([660, 661], experts=1000))
    assert (found.admissions, found.left) == ((), 2)
    assert ring.hand == slots - 1


def test_of_a_window_the_coldest_goes_and_the_hand_moves_behind_it(native: Native) -> None:
    owner: list[int | None] = list(range(40))
    heat = warm(**{f"k{key}": 9 for key in range(40)})
    heat.known[12] = (2 * ONE_PICK, 0)
    heat.known[18] = (ONE_PICK, 0)
    ring = Ring(owner, locked={3, 4}, heat=heat)
    assert native(ring, step_of([50], now=5)).admissions == ((50, 12, 12),)
    assert ring.hand == WINDOW + 2, "busy slots are not part of the window"
    assert native(ring, step_of([51], now=5)).admissions == ((51, 18, 18),)


@pytest.mark.parametrize("hand", [0, 3, 35])
def test_among_equals_the_first_behind_the_hand_goes(native: Native, hand) -> None:
    ring = Ring(list(range(20, 56)), hand=hand)
    assert native(ring, step_of([1])).admissions == ((1, hand, 20 + hand),)
    assert ring.hand == (hand + WINDOW) % 36


def test_an_empty_slot_goes_before_one_that_was_never_picked(native: Native) -> None:
    ring = Ring([40, 41, None, 43])
    assert native(ring, step_of([1])).admissions == ((1, 2, None),)
    assert ring.hand == 0, "a round has fewer slots than a window"


def test_few_slots_fill_before_anybody_goes(native: Native) -> None:
    ring = Ring([None] * 5, hand=3)
    slots = []
    for expert in range(5):
        found = native(ring, step_of([expert]))
        apply(ring, found, 0)
        slots.append(found.admissions[0][1])
    assert slots == [3, 4, 0, 1, 2]


def test_a_repeated_expert_outlives_a_run_of_one_time_experts(native: Native) -> None:
    slots = 6
    ring = Ring([None] * slots)
    apply(ring, native(ring, step_of([0])), 0)
    for stranger in range(1, 50):
        found = native(ring, step_of([0, stranger], now=stranger))
        assert found.hits == 1, f"expert 0 was gone after {stranger} strangers"
        apply(ring, found, 0)


def test_a_favourite_of_before_gives_way_to_what_is_picked_now(native: Native) -> None:
    """Ten picks long ago are worth less than one of a moment ago; so much the later, the more."""
    for since, gone in ((8, 1), (9, 0)):
        ring = Ring([0, 1], heat=Heat({0: (10 * ONE_PICK, 100 - since), 1: (ONE_PICK, 100)}))
        assert native(ring, step_of([2], now=100)).admissions == ((2, gone, gone),)


def test_heat_halves_every_half_life_and_stops_at_its_limit(native: Native) -> None:
    ring = Ring([None])
    native(ring, step_of([1] * 256))
    native(ring, step_of([1], now=HALF_LIFE))
    assert ring.heat.known[1] == ((128 + 1) * ONE_PICK, HALF_LIFE)
    ring.heat.known[1] = (MOST_HEAT - 5, HALF_LIFE)
    native(ring, step_of([1], now=HALF_LIFE))
    assert ring.heat.known[1] == (MOST_HEAT, HALF_LIFE)


def test_the_parabola_stays_near_the_power_of_two() -> None:
    for age in range(300):
        assert aged(1 << 31, age, 32) / 2.0**63 == pytest.approx(
            2 ** (-age / HALF_LIFE), rel=0.0033
        )


def test_steady_picks_never_reach_the_limit() -> None:
    """All picks of all steps on one expert: below the limit, so that the hottest stay apart."""
    heat = 0
    for _ in range(4000):
        heat = aged(heat, 1) + 256 * ONE_PICK
    assert heat < MOST_HEAT


def test_256_picks_fit_and_257_do_not(native: Native) -> None:
    many = step_of(list(range(256)), experts=1000, admit_limit=256)
    assert len(native(Ring([None] * 300), many).admissions) == 256
    with pytest.raises(BadArgument, match="num_picks"):
        native(Ring([None] * 300), step_of(list(range(257)), experts=1000))


def test_no_slots_are_refused_here(native: Native) -> None:
    with pytest.raises(BadArgument, match="slots is 0"):
        native(Ring([]), step_of([1]))
