"""Whether a JSON schema has a finite document: one that requires itself has none.

The grammar of such a schema compiles, and generation never comes to an end. Pure; what it does not
know (other keywords, references to elsewhere) counts as finite.
"""

from __future__ import annotations

from typing import Any, cast

_VISITS = 20_000  # of nodes; a schema that takes more is left to the grammar's own limits

Node = dict[str, Any]


def is_endless(schema: Any) -> bool:
    """True when every document of the schema would contain itself without end."""
    try:
        return not _Search(schema).finite(schema, frozenset({"#"}))
    except RecursionError:
        return False


class _Search:
    """A smallest document never goes through one reference twice on its way down."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._visits = 0

    def finite(self, found: Any, opened: frozenset[str]) -> bool:
        self._visits += 1
        if not isinstance(found, dict) or self._visits > _VISITS:
            return True
        node = cast("Node", found)
        if "enum" in node or "const" in node:
            return True
        parts = (self._reference, self._choices, self._object, self._array)
        return all(part(node, opened) for part in parts)

    def _reference(self, node: Node, opened: frozenset[str]) -> bool:
        name = node.get("$ref")
        if not isinstance(name, str):
            return True
        return name not in opened and self.finite(_target(self._root, name), opened | {name})

    def _choices(self, node: Node, opened: frozenset[str]) -> bool:
        every = all(self.finite(one, opened) for one in _list(node, "allOf"))
        choices = [found for key in ("anyOf", "oneOf") if (found := _list(node, key))]
        return every and all(any(self.finite(one, opened) for one in found) for found in choices)

    def _object(self, node: Node, opened: frozenset[str]) -> bool:
        properties: Any = node.get("properties")
        if node.get("type") not in ("object", ["object"]) or not isinstance(properties, dict):
            return True
        names = [name for name in _list(node, "required") if isinstance(name, str)]
        inner = cast("Node", properties)
        return all(self.finite(inner.get(name), opened) for name in names)

    def _array(self, node: Node, opened: frozenset[str]) -> bool:
        least: Any = node.get("minItems")
        if node.get("type") not in ("array", ["array"]) or not isinstance(least, int):
            return True
        first = _list(node, "prefixItems")[: max(0, least)]
        rest = [node.get("items")] if least > len(first) else []
        return all(self.finite(one, opened) for one in (*first, *rest))


def _list(node: Node, key: str) -> list[Any]:
    found: Any = node.get(key)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _target(root: Any, name: str) -> Any:
    """What `#/$defs/x` names in the document; None for what is elsewhere or missing."""
    if name == "#":
        return root
    if not name.startswith("#/"):
        return None
    found: Any = root
    for part in name[2:].split("/"):
        if not isinstance(found, dict):
            return None
        found = cast("Node", found).get(part.replace("~1", "/").replace("~0", "~"))
    return found
