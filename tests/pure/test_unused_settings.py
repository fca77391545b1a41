"""Settings that a plan cannot honour are named, not passed over."""

from __future__ import annotations

import pytest
from recorded_machines import record

from glm53ctl import choose
from glm53ctl.errors import NoFit
from glm53ctl.unused import unused


def situation(root, **flags):
    options = choose.PlanOptions(model="tiny", **flags)
    return choose.survey(options, system=record(root, cores=4))


def warnings(root, **flags):
    found = situation(root, **flags)
    return list(unused(choose.decide(found).chosen(), found.profile))


def test_a_plan_that_uses_everything_has_no_warnings(tmp_path):
    assert warnings(tmp_path, context_tokens=4096, cache_tokens=4096) == []


def test_a_context_above_the_cache_or_the_model_is_named(tmp_path):
    (cut,) = warnings(tmp_path, context_tokens=8192, cache_tokens=4096)
    assert cut == (
        "--context-tokens 8192: the context is 4096 tokens, what the cache holds (--cache-tokens)"
    )
    (cut,) = warnings(tmp_path, context_tokens=1 << 30, cache_tokens=1 << 20)
    assert cut.endswith("all that the model was made for")


def test_a_gpu_where_none_is_used_is_named(tmp_path):
    for mode in ("auto", "cpu"):
        (told,) = warnings(tmp_path, gpu="7", mode=mode)
        assert told.startswith("--gpu 7 is not used")


@pytest.mark.parametrize("mode", ["auto", "cpu"])
def test_the_stock_engine_is_never_replaced_by_another(tmp_path, mode):
    with pytest.raises(NoFit, match="engine stock is exllamav3"):
        choose.decide(situation(tmp_path, engine="stock", mode=mode)).chosen()
