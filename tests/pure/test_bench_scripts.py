"""The stand-alone bench scripts: their arithmetic, and their talk with servers of another kind."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = ("score_ref_panel", "sweep", "stream_rate", "record_panel")


@pytest.fixture(autouse=True)
def _beside_the_scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


def load(name):
    return importlib.import_module(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_needs_nothing_but_the_standard_library(name):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         f"import sys; sys.path.insert(0, {str(BENCH)!r}); import {name}; sys.exit({name}.main())",
         "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--url" in done.stdout


def test_kl_is_zero_for_the_same_and_known_for_a_known_pair():
    panel = load("score_ref_panel")
    same = [-1.0, -2.0, -3.0]
    assert panel.kl([1, 2, 3], same, [value - 7 for value in same]) == pytest.approx(0, abs=1e-12)
    half = [math.log(0.5), math.log(0.5)]
    quarter = [math.log(0.25), math.log(0.75)]
    assert panel.kl([1, 2], half, quarter) == pytest.approx(
        0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    )
    assert panel.kl([1, 2], half, [math.nan, 0.0]) == math.inf


class Served:
    """A stub server: answers by path, keeps what it was asked."""

    def __init__(self, answers):
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self._reply(None)

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                self._reply(json.loads(self.rfile.read(length)))

            def _reply(self, body):
                outer.asked.append((self.path, body, self.headers.get("Authorization")))
                status, answer = answers(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


ITEM = {
    "prompt": "x",
    "prompt_len": 2,
    "tokens": [5, 6, 7, 8],
    "top20_ids": [[7, 1], [8, 2]],
    "top20_lp": [[-0.1, -2.4], [-0.2, -1.8]],
}


def score(tmp_path, url, *flags):
    panel, out, key = tmp_path / "panel.json", tmp_path / "out.json", tmp_path / "key"
    panel.write_text(json.dumps([ITEM]))
    key.write_text("secret\n")
    done = subprocess.run(
        [sys.executable, BENCH / "score_ref_panel.py", "--url", url, "--panel", panel, "--out", out,
         "--api-key-file", key, *flags],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done, json.loads(out.read_text()) if out.exists() else None


def sglang(path, body):
    if path == "/v1/models":
        return 200, {"data": [{"id": "m"}]}
    if "token_ids_logprob" in body:
        rows = [[[-2.4, 1, None], [-9.0, 2, None]], [[-9.0, 1, None], [-1.8, 2, None]]]
        return 200, {"meta_info": {"input_token_ids_logprobs": rows}}
    rows = [[[-0.1, 7, None]], [[-0.2, 8, None]]]
    return 200, {"meta_info": {"input_top_logprobs": rows}}


def test_ids_outside_the_servers_top_are_asked_for_by_name(tmp_path):
    with Served(sglang) as server:
        done, result = score(tmp_path, server.url)
    assert done.returncode == 0, done.stderr
    assert (result["positions"], result["mean_kl_top20"], result["top1_agreement"]) == (2, 0, 1)
    assert result["per_prompt"] == [
        {"i": 0, "positions": 2, "top1": 1.0, "kl": 0.0, "greedy_match": 1.0}
    ]
    first, second = [body for path, body, _ in server.asked if path == "/generate"]
    assert (first["logprob_start_len"], first["top_logprobs_num"]) == (2, 100)
    assert second["token_ids_logprob"] == [1, 2]
    assert {key for _, _, key in server.asked} == {"Bearer secret"}


def test_the_vllm_adapter_floors_and_counts_what_is_missing(tmp_path):
    def vllm(path, body):
        if path == "/v1/models":
            return 200, {"data": [{"id": "m"}]}
        rows = [None, {"6": {"logprob": -1}}, {"7": {"logprob": -0.1}, "1": {"logprob": -2.4}},
                {"8": {"logprob": -0.2}, "9": {"logprob": -1.8}}]  # fmt: skip
        return 200, {"choices": [{"prompt_logprobs": rows}]}

    with Served(vllm) as server:
        done, result = score(tmp_path, server.url, "--server", "vllm")
    assert done.returncode == 0, done.stderr
    assert (result["adapter"], result["floored"], result["mean_kl_top20"]) == ("vllm", 1, 0)


def test_a_server_that_fails_is_named_with_the_prompt(tmp_path):
    def broken(path, body):
        if path == "/v1/models":
            return 200, {"data": [{"id": "m"}]}
        return 500, {"error": {"message": "the model produced NaN logits"}}

    with Served(broken) as server:
        done, result = score(tmp_path, server.url)
    assert (done.returncode, result) == (1, None)
    assert "prompt 0: /generate: HTTP 500: the model produced NaN logits" in done.stderr


def test_logprobs_that_are_no_numbers_are_not_a_score(tmp_path):
    def nothing(path, body):
        status, answer = sglang(path, body)
        for rows in answer.get("meta_info", {}).values():
            rows[1] = [[None, pair[1], None] for pair in rows[1]]
        return status, answer

    with Served(nothing) as server:
        done, result = score(tmp_path, server.url)
    assert done.returncode == 0, done.stderr
    assert (result["mean_kl_top20"], result["top1_agreement"]) == (None, 0.5)
    assert result["worst"][0] == {"prompt": 0, "position": 3, "kl": None}


def even(count, seconds):
    return [(10 + (i + 1) * seconds / count, 4) for i in range(count)]


def test_an_even_stream_passes_and_bursts_fail():
    judge = load("stream_rate").judge
    assert judge(even(300, 25.0), 10.0)["pass"]
    assert judge(even(60, 4.0), 10.0)["pass"]
    everything_late = judge([(35.0, 1200)], 10.0)
    assert (
        everything_late["pass"],
        everything_late["half_share"],
        everything_late["tail_share"],
    ) == (False, 0, 1)
    # Every second token held back until the end: the known half-rate defect.
    flushed = [(at, 2) for at, _ in even(300, 25.0)] + [(35.0, 600)]
    found = judge(flushed, 10.0)
    assert (found["pass"], found["half_share"] < 0.4, found["tail_share"] > 0.1) == (
        False,
        True,
        True,
    )
    assert not judge([], 10.0)["pass"]
    in_four = judge([(10 + 5 * i, 300) for i in (1, 2, 3, 4)], 10.0)
    assert not in_four["pass"]


def test_the_bins_hold_every_character():
    stream = load("stream_rate")
    found = stream.bins(even(300, 25.0), 10.0)
    assert sum(found["bin_chars"]) == 1200
    assert found["bin_s"] * len(found["bin_chars"]) == pytest.approx(25.0)


def stream(first, end, tokens, asked=0.0):
    return {"asked_s": asked, "first_s": first, "end_s": end, "tokens": tokens, "finish": "stop"}


def test_rates_count_tokens_after_the_first_and_wait_for_the_last():
    sweep = load("sweep")
    one = sweep.round_figures([stream(1.0, 11.0, 101)])
    assert (one["aggregate"], one["per_stream_mean"], one["ttft_max"]) == (10, 10, 1)
    two = sweep.round_figures([stream(1.0, 11.0, 101), stream(1.0, 6.0, 51)])
    assert (two["aggregate"], two["per_stream_min"], two["tokens"]) == (15, 10, 152)


def test_a_gate_holds_within_the_tolerance():
    gate = load("sweep").gate
    assert gate(95.0, 100.0, 0.05)["pass"]
    assert not gate(94.9, 100.0, 0.05)["pass"]
    assert gate(1.0, None, 0.05) == {"value": 1.0, "best_known": None, "pass": True}


def test_decode_kl_of_two_tables():
    torch = pytest.importorskip("torch")
    kl = load("decode_kl")
    table = torch.log_softmax(torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.9]]), dim=-1)
    assert kl.totals(kl.compare(table, table)) == {
        "positions": 2, "kl_mean": 0, "kl_p99": 0, "kl_max": 0, "top1_agree": 1,
    }  # fmt: skip
    other = torch.log_softmax(torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.9, 2.0]]), dim=-1)
    found = kl.compare(table, other)
    assert (kl.first_divergence(found), kl.totals(found)["top1_agree"]) == (1, 0.5)
    report = kl.prompt_report("p", found, sec_exact=1.0)
    assert report["disagree_margins_nats"] == [pytest.approx(0.1, abs=1e-4)]
    assert report["kl_max"] > 0
