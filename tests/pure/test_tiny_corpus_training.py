"""Training of the tiny model on a very small one: the training forms compute what transformers computes."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers.models.glm5_next import modeling_glm5_next as glm5_next

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import convert_tiny  # noqa: E402
import train_tiny  # noqa: E402
from tiny import batches, card, dense_kl, fast, kda, routing, shape, training  # noqa: E402

from glm53ctl.checkpoint import open_checkpoint  # noqa: E402

STOCK = (glm5_next.chunk_kimi_delta_attention, glm5_next.causal_conv1d_fn)


@pytest.fixture(autouse=True)
def stock():
    """The training form of linear attention replaces transformers' for the whole process."""
    yield
    glm5_next.chunk_kimi_delta_attention, glm5_next.causal_conv1d_fn = STOCK


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "dense"
    patch = pytest.MonkeyPatch()
    patch.setattr(
        sys,
        "argv",
        ["train_tiny.py", "--smoke", "--steps", "2", "--tokens", "768", "--out", str(folder)],
    )
    with patch.context():
        assert train_tiny.main() == 0
    patch.undo()
    return folder


def disturbed(seed: int):
    """A model whose weights are far enough from their start that every path matters."""
    model = train_tiny.build(shape.SMOKE, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            wide = 2.0 if "dt_bias" in name or "A_log" in name else 0.05
            parameter.add_(torch.randn_like(parameter) * wide)
    return model


def outcome(model, ids):
    """Logits and gradients."""
    model.zero_grad()
    logits = model.lm_head(model.model(input_ids=ids, use_cache=False).last_hidden_state)
    logits.square().mean().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients


def test_the_training_forms_give_transformers_logits_and_gradients(stock):
    model = disturbed(3)
    ids = torch.randint(0, 900, (2, 43), generator=torch.Generator().manual_seed(1))
    wanted, wanted_gradients = outcome(model, ids)
    fast.prepare(model)
    found, gradients = outcome(model, ids)
    assert torch.allclose(found, wanted, atol=1e-4 * float(wanted.abs().max()))
    assert gradients.keys() == wanted_gradients.keys()
    for name, gradient in gradients.items():
        error = (gradient - wanted_gradients[name]).abs().max()
        assert error <= 2e-3 * wanted_gradients[name].abs().max() + 1e-9, name


def test_conversations_in_one_row_do_not_see_each_other():
    model = disturbed(4)
    forms = fast.prepare(model)
    first, second = (torch.randint(0, 900, (1, n)) for n in (40, 61))
    gap = torch.full((1, 24), 988)
    row = torch.cat([first, gap, second], 1)
    with torch.no_grad():
        alone = [
            model.model(input_ids=x, use_cache=False).last_hidden_state for x in (first, second)
        ]
        forms.arrange(torch.tensor([[0] * 64 + [1] * 61]))
        mask = torch.tensor([[True] * 40 + [False] * 24 + [True] * 61])
        both = model.model(input_ids=row, attention_mask=mask, use_cache=False).last_hidden_state
    assert torch.allclose(both[:, :40], alone[0], atol=1e-4)
    assert torch.allclose(both[:, 64:], alone[1], atol=1e-4)


def test_the_delta_rule_survives_the_strongest_decay():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 50, 2, 8) for _ in range(3))
    decay = torch.full((1, 50, 2, 8), -5.0)
    decay[:, ::3] = -1e-4
    beta = torch.rand(1, 50, 2)
    state, outputs = torch.zeros(2, 8, 8), []
    unit = [torch.nn.functional.normalize(x[0], dim=-1) for x in (query, key)]
    for t in range(50):  # the rule as it is written down, one position after another
        state = state * decay[0, t].exp()[..., None]
        news = (value[0, t] - torch.einsum("hkv,hk->hv", state, unit[1][t])) * beta[0, t, :, None]
        state = state + unit[1][t][..., None] * news[:, None]
        wanted = torch.einsum("hkv,hk->hv", state, unit[0][t]) * 8**-0.5
        outputs.append(wanted)
    found, _ = kda.DeltaRule()(query, key, value, decay, beta, use_qk_l2norm_in_kernel=True)
    assert torch.allclose(found[0], torch.stack(outputs), atol=1e-5)


def test_a_dense_checkpoint_has_the_names_and_dtypes_that_the_converter_takes(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["text_config"]["layer_types"][2:] == [
        "linear_attention",
        "deepseek_sparse_attention",
    ]
    assert config["text_config"]["eos_token_id"] == [988, 995, 997]
    assert config["image_token_id"] == 1022
    with safe_open(trained / "model.safetensors", "pt") as file:
        dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    for name, dtype in dtypes.items():
        assert dtype == ("F32" if shape.kept_float32(name) else "BF16"), name
        assert not name.startswith("model.visual.")
    linear = {name.removesuffix(".weight") for name in dtypes}
    for name in convert_tiny.widths(config["text_config"]):
        parts = [name.replace("qkv_proj", f"{x}_proj") for x in "qkv"] if "qkv" in name else [name]
        assert linear.issuperset(parts)
    assert not list(trained.glob("*calibration*"))


def test_the_report_and_the_calibration_rows_are_written(trained):
    report = json.loads((trained / "training.json").read_text())
    assert report["steps"] == 2
    assert report["held_out"]["all"] >= 0
    assert len(report["routing"]) == 3
    with safe_open(trained.with_name("dense-calibration.safetensors"), "pt") as rows:
        ids = rows.get_tensor("input_ids")
    assert ids.shape == (8, batches.WIDTH)
    assert ids[0, :2].tolist() == [990, 992]  # [gMASK]<sop>
    assert (ids < 1024).all()
    assert (ids != 988).all()


def conversation(length: int, seed: int) -> batches.Row:
    """Random ids of which the second half is learned."""
    ids = np.random.default_rng(seed).integers(0, 900, length).tolist()
    return ids, [i >= length // 2 for i in range(length)]


def small_trainer() -> training.Trainer:
    torch.manual_seed(0)
    model = train_tiny.build(shape.SMOKE, 1)
    return training.Trainer(model, routing.Router(model), training.Recipe(training.Limits(60)))


def small_batch() -> batches.Batch:
    batch = batches.Batch.empty(2, 988, 128)
    for row, at in ((0, 0), (0, 64), (1, 0)):
        batch.place(row, at, conversation(40, row + at))
    return batch


def test_the_loss_falls_on_what_is_learned():
    trainer, batch = small_trainer(), small_batch()
    losses = [float(trainer.step(batch, 3e-3)[0]) for _ in range(8)]
    assert losses[-1] < losses[0] - 0.5
    free = trainer.loss(batch)
    batch.ids[0, 39] = 7  # the last id of a conversation is read by nothing that is learned
    assert torch.equal(free, trainer.loss(batch))
    batch.ids[0, 38] = 7
    assert not torch.equal(free, trainer.loss(batch))


def test_a_step_whose_gradient_is_not_finite_changes_nothing(monkeypatch):
    trainer, batch = small_trainer(), small_batch()
    trainer.step(batch, 3e-3)
    before = {name: x.clone() for name, x in trainer.model.state_dict().items()}
    monkeypatch.setattr(trainer._router, "movement", lambda _: torch.tensor(math.nan) * trainer.model.lm_head.weight.sum())  # fmt: skip
    trainer.step(batch, 3e-3)
    assert all(torch.equal(x, before[name]) for name, x in trainer.model.state_dict().items())


@pytest.mark.parametrize("trouble", ["", "raises", "computes something else"])
def test_a_piece_that_does_not_compile_stays_as_it_is(monkeypatch, capsys, trouble):
    def compile_(plain):
        def compiled(*given):
            if trouble == "raises":
                raise RuntimeError("no compiler")
            made = plain(*given)
            return made * math.nan if trouble and isinstance(made, torch.Tensor) else made

        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    trainer = small_trainer()
    trainer.compile(small_batch(), 60)
    kept = {piece.name for piece in trainer._forms if piece._compiled}
    told = capsys.readouterr().out
    assert ("activate" in kept) == ("compiling activate: done" in told)
    assert ("leave" in kept) == (not trouble)
    assert trainer.step(small_batch(), 1e-3)[0].isfinite()


def test_the_loss_of_fixed_shapes_is_the_one_of_the_learned_positions():
    trainer, batch = small_trainer(), small_batch()
    loss = trainer.loss(batch)
    loss.backward()
    head = trainer.model.lm_head.weight
    found, head.grad = head.grad.clone(), None
    trainer._forms.arrange(torch.from_numpy(batch.conversations))
    hidden = trainer.model.model(
        input_ids=torch.from_numpy(batch.ids).long(),
        attention_mask=torch.from_numpy(batch.used),
        use_cache=False,
    ).last_hidden_state
    learned = torch.from_numpy(batch.targets != -100)
    logits = trainer.model.lm_head(hidden[learned])
    wanted = torch.nn.functional.cross_entropy(
        logits, torch.from_numpy(batch.targets)[learned].long()
    )
    wanted.backward()
    assert 0 < int(learned.sum()) < learned.numel() // 2
    assert torch.allclose(loss, wanted, atol=1e-6)
    assert torch.allclose(found, head.grad, atol=1e-7)


class Replayed:
    """In place of a CUDA graph: the function itself, at whatever is copied in."""

    def __init__(self, function, given):
        self._function, self._given = function, given.clone()
        self._made = tuple(x.clone() for x in function(self._given))

    def __call__(self, given):
        self._given.copy_(given)
        for made, new in zip(self._made, self._function(self._given), strict=True):
            made.copy_(new)
        return self._made


def learned(trainer: training.Trainer):
    """Losses, movements and weights of three steps. A process has the forms of one trainer at a time."""
    other = small_batch()
    other.ids[0, 3] = 7
    made = []
    for batch in (small_batch(), other, small_batch()):
        made += [x.clone() for x in trainer.step(batch, 1e-3)]
    return made + list(trainer.model.state_dict().values())


def test_a_recorded_step_learns_what_a_plain_one_learns(monkeypatch, capsys):
    wanted = learned(small_trainer())
    trainer = small_trainer()
    before = [x.clone() for x in trainer.model.state_dict().values()]
    monkeypatch.setattr(training, "Recorded", Replayed)
    trainer.record(small_batch())
    assert "recording the step: done" in capsys.readouterr().out
    assert all(map(torch.equal, trainer.model.state_dict().values(), before))
    assert trainer._recorded
    assert all(map(torch.equal, learned(trainer), wanted))
    assert trainer.steps == 3


@pytest.mark.parametrize("trouble", ["raises", "computes something else"])
def test_a_step_that_does_not_record_stays_as_it_is(monkeypatch, capsys, trouble):
    class Other(Replayed):
        def __call__(self, given):
            if trouble == "raises":
                raise RuntimeError("operation not permitted when stream is capturing")
            return tuple(2 * x for x in super().__call__(given))

    wanted = learned(small_trainer())
    monkeypatch.setattr(training, "Recorded", Other)
    trainer = small_trainer()
    trainer.record(small_batch())
    told = capsys.readouterr().out
    assert "recording the step: " in told
    assert "done" not in told
    assert all(map(torch.equal, learned(trainer), wanted))


def test_other_processes_make_the_same_batches(trained):
    source = batches.Source(trained / "tokenizer.json", 5, 988, 2, 120)
    here, there = source.batches(0), source.batches(1)
    for ours, theirs in zip(islice(here, 4), islice(there, 4), strict=True):
        assert all(
            np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in ours.__slots__
        )
    training.close(there)


def test_conversations_are_packed_into_rows_without_loss_or_overlap():
    rng = np.random.default_rng(1)
    given = [conversation(int(n), i) for i, n in enumerate(rng.integers(20, 400, 200))]
    batch = next(batches.packed(iter(given), 6, 988))
    wanted = {tuple(ids): learned for ids, learned in given}
    found = 0
    for row in range(6):
        for number in range(batch.conversations[row].max() + 1):
            here = np.flatnonzero((batch.conversations[row] == number) & batch.used[row])
            assert here[0] % kda.CHUNK == 0
            assert np.array_equal(here, np.arange(here[0], here[-1] + 1))
            ids = batch.ids[row, here].tolist()
            learned = wanted[tuple(ids)]
            after = [i if keep else -100 for i, keep in zip(ids[1:], learned[1:], strict=True)]
            assert batch.targets[row, here].tolist() == [*after, -100]
            found += 1
    assert (batch.targets[~batch.used] == -100).all()
    assert (batch.ids[~batch.used] == 988).all()
    assert found >= 15
    assert batch.used.mean() > 0.75


def test_the_learning_rate_rises_and_falls():
    rates = [training.rate(i / 100, 1.0) for i in range(101)]
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[0] < 0.1
    assert rates[-1] == pytest.approx(0.02)
    assert training.Limits(100.0, 10).done(5, 20.0) == 0.5
    assert training.Limits(100.0).done(5, 250.0) == 1.0


def test_the_widths_name_every_layer_that_is_quantised():
    tiny = ROOT / "reference" / "tiny"
    config = json.loads((tiny / "config.json").read_text())
    stored = open_checkpoint(tiny).tensors
    quantised = {name.removesuffix(".trellis") for name in stored if name.endswith(".trellis")}
    bits = convert_tiny.widths(config["text_config"])
    assert bits.keys() == quantised - {"lm_head"}
    experts = {width for name, width in bits.items() if ".experts." in name}
    assert experts == {3}
    assert set(bits.values()) == {3, 4, 5}


def test_the_card_says_where_a_checkpoint_comes_from(tmp_path, trained):
    report = json.loads((trained / "training.json").read_text())
    calibration = {"rows": 12, "cols": 345}
    (tmp_path / "config.json").write_text(
        json.dumps({"quantization_config": {"version": "1.5.1", "calibration": calibration}})
    )
    (tmp_path / "x.json").write_text("{}")
    card.write_card(tmp_path, report, ["x.json"])
    text = (tmp_path / "README.md").read_text()
    for words in ("seed 1", "MIT", "exllamav3 1.5.1", "12 rows", "345 tokens", "cannot do"):
        assert words in text
    assert "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" in text


def test_the_bundled_checkpoint_is_the_one_its_card_describes():
    folder = ROOT / "reference" / "tiny"
    text = (folder / "README.md").read_text(encoding="utf-8")
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "README.md"
    }
    assert dict(re.findall(r"^\| (\S+) \| ([0-9a-f]{64}) \|$", text, re.MULTILINE)) == digests
    assert sum(path.stat().st_size for path in folder.iterdir()) < 25e6


def test_a_saved_checkpoint_loads_and_differs_from_its_own_panel_by_nothing(
    trained, monkeypatch, capsys
):
    model = dense_kl.load(trained)
    tokens = torch.arange(5, 45).tolist()
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
        top = model.lm_head(hidden).log_softmax(-1).topk(20)
    item = {"tokens": tokens, "prompt_len": 10,
            "top20_ids": top.indices[9:39].tolist(), "top20_lp": top.values[9:39].tolist()}  # fmt: skip
    found = list(dense_kl.rows(model, [item]))
    assert len(found) == 30
    assert all(abs(kl) < 1e-6 and same for kl, same in found)
    other = item | {"top20_lp": [row[::-1] for row in item["top20_lp"]]}
    assert max(kl for kl, _ in dense_kl.rows(model, [other])) > 1e-3
    panel = trained.with_name("panel.json")
    panel.write_text(json.dumps([item]))
    monkeypatch.setattr(sys, "argv", ["dense_kl", str(trained), str(panel)])
    assert dense_kl.main() == 0
    assert "30 positions: mean KL 0.0000" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", bytes(100), b"\xff" * 5000, None])
def test_a_cache_of_compiled_pieces_that_is_broken_is_of_no_use(tmp_path, content):
    cache = tmp_path / "pieces"
    if content is None:
        cache.mkdir()
    else:
        cache.write_bytes(content)
    assert train_tiny._compiled_before(cache).startswith("of no use: ")
