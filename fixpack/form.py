"""The form of generated JSON: types, lists of a form, mappings of known keys to forms; "*" stands for any key."""

from __future__ import annotations

from typing import Any


def misfit(value: Any, form: Any, at: str = "", what: str = "it") -> str:
    """Where a value is not of its form, "" if it is.

    :param what: how messages call the whole value.
    """
    where = at or what
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return f"{where} is not a mapping"
        if "*" not in form and value.keys() != form.keys():
            return f"the keys of {where} are not {', '.join(form)}"
        pairs = ((each, form.get(key, form.get("*")), f"{at}/{key}") for key, each in value.items())
    elif isinstance(form, list):
        if not isinstance(value, list):
            return f"{where} is not a list"
        pairs = ((each, form[0], f"{at}/{number}") for number, each in enumerate(value))
    else:
        right = isinstance(value, form) and (form is bool or not isinstance(value, bool))
        return "" if right else f"{where} is {value!r:.100}"
    return next((wrong for each in pairs if (wrong := misfit(*each, what))), "")
