"""The replay of routing traces: hand-computed small ones, and no policy beats the one that knows the future."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glm53_server.moe.split import LaneCosts
from glm53ctl.checkpoint import FLASH

BENCH = Path(__file__).resolve().parents[2] / "bench"
EVEN = LaneCosts(link_s=0.2, cpu_s=0.3, fixed_s=0.1)


@pytest.fixture(autouse=True)
def _beside_the_scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


def load(name):
    return importlib.import_module(name)


def one_pick_a_step(*experts: int) -> np.ndarray:
    return np.array(experts).reshape(-1, 1, 1, 1)


def replayed(arm: str, trace: np.ndarray, slots: int, **rules):
    """The tally of one arm, in exact unless rules say otherwise."""
    replay, (make, _) = load("replay_policies"), load("replay_arms").ARMS[arm]
    policy = make(slots, trace.shape[1] * FLASH.experts, replay.uses_of(trace))
    return replay.replay(trace, policy, EVEN, replay.Rules(**{"split": "exact", **rules}))


@pytest.mark.parametrize(
    ("arm", "hits", "admitted"),
    [
        # 1 enters uncounted; then 2 enters, 1 is hit, 3 takes 2's slot, 1 is hit, 2 takes 3's slot.
        ("CLOCK", 2, 3),
        ("LRU", 2, 3),
        ("LFU, half-life 64", 2, 3),
        # 3 is never picked again, so 2 keeps its slot and is hit.
        ("Belady (knows the future)", 3, 1),
    ],
)
def test_six_steps_by_hand(arm, hits, admitted):
    tally = replayed(arm, one_pick_a_step(1, 2, 1, 3, 1, 2), slots=2)
    assert (tally.hits, tally.misses, tally.admitted) == (hits, 5 - hits, admitted)
    assert tally.link == tally.misses, "in exact mode every miss crosses the link once"
    assert tally.lanes_s == pytest.approx(0.2 * tally.misses)


def test_the_recent_and_the_frequent_part_ways():
    """1 was picked three times, 2 once but later: 3 takes the slot of the one, or of the other."""
    trace = one_pick_a_step(1, 1, 1, 2, 3, 1)
    assert replayed("LRU", trace, slots=2).hits == 2
    assert replayed("LFU, half-life 64", trace, slots=2).hits == 3


def test_a_topic_of_before_loses_its_weight_only_by_ageing():
    trace = one_pick_a_step(*[1] * 40, *[2, 3] * 80)
    aged, kept = (replayed(f"LFU, half-life {n}", trace, slots=2).hits for n in (16, 256))
    assert aged > kept + 40


def test_a_limit_reads_the_rest_in_place():
    trace = np.arange(8).reshape(1, 1, 1, 8).repeat(3, 0)
    tally = replayed("CLOCK", trace, slots=8, limit=1)
    assert (tally.hits, tally.admitted) == (0 + 1 + 2, 3)
    assert tally.link == tally.misses == 21


def test_second_touch_lets_nobody_in_at_first_sight():
    make = load("replay_arms").clock(touch=2)
    policy = make(1, FLASH.experts, [])

    def enters(key: int, now: int) -> bool:
        _, misses, busy = policy.touch([key], now)
        return bool(misses) and policy.place(key, busy)

    assert not enters(5, 0)
    assert enters(5, 2), "seen two steps ago"
    assert not enters(6, 3)
    assert not enters(6, 6), "three steps ago is too long"


def test_hysteresis_keeps_equals_where_they_are():
    policies = load("cache_policies")
    score = policies.Frequency(10)
    for key, picks in ((1, 4), (2, 4), (3, 5)):
        for _ in range(picks):
            score.touch(key, 0)
    gate = policies.warmer(score, 1.25)
    assert not gate(2, 1)
    assert gate(3, 1)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_beats_the_one_who_knows(seed):
    generator = np.random.default_rng(seed)
    weights = generator.lognormal(0, 1.2, 30)
    trace = np.array(
        [
            [[generator.choice(30, 3, replace=False, p=weights / weights.sum())] for _ in range(2)]
            for _ in range(120)
        ]
    )
    hits = {arm: replayed(arm, trace, slots=16).hits for arm in load("replay_arms").ARMS}
    assert max(hits.values()) == hits["Belady (knows the future)"]
    assert len(set(hits.values())) > 5, "the arms are not all the same policy"


@pytest.mark.parametrize("costs", [EVEN, LaneCosts(0.4, 0.1, 0.06), LaneCosts(0.19, 0.21, 0.0)])
def test_the_whole_split_is_the_best_of_all(costs):
    replay = load("replay_policies")
    splitter = replay.Splitter(costs, "whole")
    for misses in range(12):
        link = splitter.link(0, misses)
        times = [replay.lane_s(costs, 0, k, misses - k) for k in range(misses + 1)]
        assert times[link] == pytest.approx(min(times))


def test_a_share_rounded_in_turns_is_kept_in_the_mean():
    replay = load("replay_policies")
    splitter = replay.Splitter(EVEN, "share")
    found = [splitter.link(4, 4) for _ in range(2000)]
    assert sum(found) / 2000 == pytest.approx((4 * 0.3 + 0.1) / 0.5, abs=0.01)
    assert set(found) == {2, 3}


def test_figures_are_per_token_and_charge_background_copies():
    replay = load("replay_policies")
    machine = replay.Machine(EVEN, {2: 1000.0}, exposed=0.5)
    tally = replay.Tally(hits=30, misses=10, link=8, admitted=6, background=2, lanes_s=4.0)
    found = replay.figures(tally, machine, streams=2, steps=5)
    assert found["hit_rate"] == 0.75
    assert (found["misses"], found["admissions"]) == (1.0, 0.8)
    assert found["link_gb_on_path"] == round(0.8 * FLASH.expert_bytes / 1e9, 3)
    assert found["link_gb_off_path"] == round(0.2 * FLASH.expert_bytes / 1e9, 3)
    assert found["tok_per_s_if_hidden"] == round(2 / (1.0 + 4.0 / 5), 2)
    assert found["tok_per_s"] == round(2 / (1.0 + 4.0 / 5 + 2 * 0.2 * 0.5 / 5), 2)


def test_streams_have_topics_and_change_them():
    trace = load("replay_policies").topical_trace(24, 2, 0.0)
    assert trace.shape == (24, FLASH.moe_layers, 2, FLASH.experts_per_token)
    counts = {
        (half, stream): np.bincount(
            trace[12 * half : 12 * half + 12, 30, stream].ravel(), minlength=288
        )
        for half, stream in itertools.product((0, 1), (0, 1))
    }
    for one, other in itertools.combinations(counts.values(), 2):
        assert np.minimum(one, other).sum() < 48, "half of a topic's picks are another's"


def test_a_recorded_trace_is_replayed_from_its_file(tmp_path):
    trace = np.random.default_rng(0).integers(0, 40, (12, 3, 1, 4)).astype(np.int16)
    np.save(tmp_path / "trace.npy", trace)
    done = subprocess.run(
        [sys.executable, str(BENCH / "replay_policies.py"), "--trace", str(tmp_path / "trace.npy"),
         "--slots", "20", "--workers", "1", "--only", "LRU", "Belady (knows the future)",
         "--out", str(tmp_path / "out.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    body = json.loads((tmp_path / "out.json").read_text())
    rates = {name: found["exact_h200"]["hit_rate"] for name, found in body["traces"]["c1"].items()}
    assert 0 < rates["LRU"] < rates["Belady (knows the future)"] < 1
    assert body["command"].startswith("python3 ")
    assert "| LRU |" in done.stdout


def test_of_the_next_slots_the_coldest_goes_and_the_hand_moves_behind_them():
    policies = load("cache_policies")
    score = policies.Frequency(10)
    for key, picks in ((0, 3), (1, 1), (2, 2), (3, 0)):
        for _ in range(picks):
            score.touch(key, 0)
    eviction = policies.ColdestOfNext(score, 2)
    owner = np.arange(4)
    assert eviction.victim(owner, set()) == 1, "of 0 and 1"
    assert eviction.victim(owner, {3}) == 2, "of 2 and 0"
    assert eviction.victim(owner, {1}) == 3, "of 2 and 3"


RIGHT = np.zeros((4, 2, 1, 3), np.int16)


def saved(path: Path, content) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path.with_suffix(".npz"), **content)
        path.with_suffix(".npz").rename(path)
    elif content is not None:
        np.save(path, content, allow_pickle=True)


def header(shape: str) -> bytes:
    """A .npy file that promises a shape and holds nothing."""
    text = f"{{'descr': '<i2', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"", "not a .npy file"),
        (b"\x93NUMPY", "not a .npy file"),
        (b"PK\x03\x04 damaged", "not a .npy file"),
        (header("(4, 2, 1, 3)"), "not a .npy file"),
        (header(f"({10**12}, 40, 1, 8)"), "not a .npy file"),
        (header(f"({10**30}, 40, 1, 8)"), "not a .npy file"),
        (header("("), "not a .npy file"),
        ({"a": RIGHT}, "not a .npy file"),
        (np.array([{}], object), "not a .npy file"),
        (RIGHT.astype(float), "float64, must be integers"),
        (RIGHT.astype(bool), "must be integers"),
        (RIGHT[0], "2x1x3, must be"),
        (np.array(5), "one number, must be"),
        (RIGHT[:0], "none of them 0"),
        (RIGHT[..., :0], "none of them 0"),
        (RIGHT - 1, "picks go from -1 to -1"),
        (RIGHT + FLASH.experts, "experts from 0 to 287"),
        (RIGHT.astype(np.uint64) + np.uint64(1 << 63), "picks go from"),
        (RIGHT.repeat(3, 2), "3 streams: what a step takes"),
        (RIGHT.repeat(5000, 0), "too many"),
        (RIGHT.repeat(50, 1), "too many"),
    ],
)
def test_a_trace_that_is_none_is_refused_in_one_line(tmp_path, monkeypatch, content, words):
    path = tmp_path / "trace.npy"
    saved(path, content)
    told = refused(monkeypatch, "--trace", str(path))
    assert words in told
    assert str(path) in told


@pytest.mark.parametrize(
    "arguments",
    [("--only", "MRU"), ("--only",), ("--steps", "5"), ("--steps", "-1"), ("--steps", "9999999"),
     ("--overlap", "2"), ("--overlap", "nan"), ("--slots", "0"), ("--slots", "99999999"),
     ("--workers", "0"), ("--seed", "-1")],
)  # fmt: skip
def test_numbers_and_names_that_no_replay_knows_are_refused_in_one_line(monkeypatch, arguments):
    assert refused(monkeypatch, *arguments).startswith(f"error: {arguments[0]} ")


def refused(monkeypatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["replay_policies.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        load("replay_policies").main()
    told = str(ended.value.code)
    assert told.startswith("error: ")
    assert "\n" not in told
    return told


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_every_known_number_of_streams_is_replayed(tmp_path, monkeypatch, capsys, streams):
    np.save(tmp_path / "trace.npy", RIGHT.repeat(streams, 2))
    monkeypatch.setattr(
        sys, "argv",
        ["x", "--trace", str(tmp_path / "trace.npy"), "--only", "LRU", "--slots", "1", "--workers", "1",
         "--out", str(tmp_path / "new" / "out.json")],
    )  # fmt: skip
    load("replay_policies").main()
    assert f"## c{streams}" in capsys.readouterr().out
    assert (tmp_path / "new" / "out.json").exists()
