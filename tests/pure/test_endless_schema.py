"""Schemas that require themselves have no finite document; those that only may contain themselves have."""

from __future__ import annotations

import pytest

from glm53_server.endless_schema import is_endless

SELF = {"$ref": "#"}
NODE = {"$ref": "#/$defs/node"}


def an_object(value, *required: str, **more):
    return {"type": "object", "properties": {"a": value}, "required": list(required), **more}


@pytest.mark.parametrize(
    "schema",
    [
        SELF,
        an_object(SELF, "a"),
        an_object(an_object(SELF, "a"), "a"),
        an_object({"anyOf": [SELF, an_object(SELF, "a")]}, "a"),
        an_object({"allOf": [{"type": "object"}, SELF]}, "a"),
        {**NODE, "$defs": {"node": an_object(NODE, "a")}},
        an_object(
            NODE, "a", **{"$defs": {"node": an_object({"$ref": "#/$defs/b"}, "a"), "b": NODE}}
        ),
        {"type": "array", "items": SELF, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, SELF], "minItems": 2},
        {"oneOf": [an_object(SELF, "a"), {"type": "array", "items": SELF, "minItems": 3}]},
    ],
)
def test_endless(schema):
    assert is_endless(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True, None, [], {}, 5, {"$ref": 5}, {"$ref": "other.json"}, {"$ref": "#/missing"},
        an_object(SELF),
        an_object(SELF, "b"),
        an_object({"anyOf": [SELF, {"type": "null"}]}, "a"),
        an_object({"type": "array", "items": SELF}, "a"),
        an_object({"type": "array", "items": SELF, "minItems": 0}, "a"),
        {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
        {"enum": [1], **an_object(SELF, "a")},
        an_object(NODE, "a", **{"$defs": {"node": {"type": "string"}}}),
        {"type": "object", "properties": {"a": NODE, "b": NODE}, "required": ["a", "b"],
         "$defs": {"node": {"type": "string"}}},
        {"type": "object", "properties": 5, "required": 5, "anyOf": 5},
    ],
)  # fmt: skip
def test_finite(schema):
    assert not is_endless(schema)


def test_a_schema_that_branches_or_nests_without_measure_ends_soon():
    names = [f"n{i}" for i in range(40)]
    both = {
        name: {"type": "object", "required": ["a", "b"],
               "properties": {key: {"$ref": f"#/$defs/n{i + 1}"} for key in "ab"}}
        for i, name in enumerate(names)
    }  # fmt: skip
    assert not is_endless({"$ref": "#/$defs/n0", "$defs": both})
    deep: dict = {}
    for _ in range(5000):
        deep = an_object(deep, "a")
    assert not is_endless(deep)
