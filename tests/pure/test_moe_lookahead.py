"""How many experts are looked ahead: what the link has time for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from glm53_server.moe.lookahead import MOST_COPIES, SLACK, copies_that_fit

times = st.floats(1e-9, 1e-1)


@given(times, times)
def test_the_copies_fit_the_idle_time_with_little_left_over(idle_s: float, copy_s: float) -> None:
    copies = copies_that_fit(idle_s, copy_s)
    assert 0 <= copies <= MOST_COPIES
    if copies:
        assert (copies - SLACK) * copy_s <= idle_s * (1 + 1e-9)
    if copies < MOST_COPIES:
        assert (copies + 1) * copy_s * (1 + 1e-9) >= idle_s


def test_a_wide_link_gets_two_a_narrow_one_none() -> None:
    assert copies_that_fit(350e-6, 175e-6) == 2
    assert copies_that_fit(350e-6, 400e-6) == 1
    assert copies_that_fit(350e-6, 3e-3) == 0
    assert copies_that_fit(1.0, 0.0) == 0
    assert copies_that_fit(1.0, 5e-324) == MOST_COPIES
