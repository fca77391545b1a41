"""What a report lets through: named fields, numbers, and text without secrets or names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from glm53ctl.report.scrub import Scrubber, numbers, only

SCRUB = Scrubber(("sk-sentinel-1", "plainpassword"), "/home/ada", "ada", "attic")


def test_T072_tokens_and_keys_are_masked_wherever_they_stand():
    token = "hf_" + "a" * 34
    for text in (
        f"GET https://hub/x?token={token}&y=1", f"Authorization: Bearer {token}", f"HF_TOKEN={token}",
        "api_key=whatever", "https://ada:secret@proxy:3128/", "the key is plainpassword", "sk-sentinel-1",
    ):  # fmt: skip
        clean = SCRUB.text(text)
        assert not any(
            word in clean for word in (token, "whatever", "secret@", "plainpassword", "sentinel")
        )


def test_names_of_people_places_and_machines_are_masked():
    text = "attic: user ada read /home/ada/models/x, /home/bob/y, /mnt/nas/private/z from 192.168.1.7 and 127.0.0.1"
    assert SCRUB.text(text) == (
        "<host>: user <user> read ~/models/x, ~/y, <mount> from <address> and 127.0.0.1"
    )
    assert SCRUB.text("GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc") == "GPU-52a3a85d…"
    assert SCRUB.text("adapter canada 1.2.3") == "adapter canada 1.2.3"
    assert len(SCRUB.lines(["x" * 9000])) == 2000


def test_only_named_fields_pass():
    body = {"a": 1, "b": {"c": 2, "secret": 3}, "secret": 4}
    assert only(body, ["a", "b.c", "missing", "b.missing", "a.deeper"]) == {"a": 1, "b": {"c": 2}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@given(JSON)
def test_numbers_never_let_text_through(value):
    def texts(item):
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            for inner in item:
                yield from texts(inner)
        elif isinstance(item, dict):
            for inner in item.values():
                yield from texts(inner)

    found = numbers({"a": value})
    assert list(texts(found)) == []


@given(st.text(), st.text(min_size=4))
def test_a_known_secret_never_survives(text, secret):
    clean = Scrubber((secret,)).text(f"{text}{secret}{text}")
    assert secret not in clean.replace("[redacted]", "\0")
