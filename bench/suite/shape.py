"""Shapes of data: fields and their types. Scenario files, target files and results are checked against
them, and their reference in docs/benchmarks.md is made from them."""
import difflib


class Wrong(Exception):
    """All errors of a file, one line each."""


class Choice:
    """One of these values."""

    def __init__(self, *values):
        self.values = values


class Either:
    """Value of one of these kinds."""

    def __init__(self, *kinds):
        self.kinds = kinds


class Map:
    """Any names, values of one kind."""

    def __init__(self, kind):
        self.kind = kind


class Record:
    """Named fields: name -> (kind, default or NEEDED, what it means)."""

    def __init__(self, **fields):
        self.fields = fields


NEEDED = object()
PLAIN = {type(None): "nothing", str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def name_of(kind):
    """Name of this kind for people."""
    if isinstance(kind, Choice):
        return "one of " + ", ".join(repr(value) for value in kind.values)
    if isinstance(kind, Either):
        return " or ".join(name_of(one) for one in kind.kinds)
    if isinstance(kind, list):
        return f"a list, each {name_of(kind[0])}"
    if isinstance(kind, Map):
        return f"a table, each {name_of(kind.kind)}"
    return "a table" if isinstance(kind, Record) else PLAIN[kind]


def faults(value, kind, place):
    """One line for each error in `value`."""
    def unlike():
        return [f"{place}: expected {name_of(kind)}, found {value!r:.80}"]

    if isinstance(kind, Record):
        if not isinstance(value, dict):
            return unlike()
        found = [f"{place}: {name} is missing" for name, (_, default, _) in kind.fields.items() if default is NEEDED and name not in value]
        for name, one in value.items():
            if name in kind.fields:
                found += faults(one, kind.fields[name][0], f"{place}.{name}")
            else:
                near = difflib.get_close_matches(name, kind.fields, 1)
                found.append(f"{place}: unknown field {name}" + (f"; did you mean {near[0]}?" if near else ""))
        return found
    if isinstance(kind, Map):
        return sum((faults(one, kind.kind, f"{place}.{name}") for name, one in value.items()), []) if isinstance(value, dict) else unlike()
    if isinstance(kind, list):
        return sum((faults(one, kind[0], f"{place}[{at}]") for at, one in enumerate(value)), []) if isinstance(value, list) else unlike()
    if isinstance(kind, Choice):
        return [] if value in kind.values else unlike()
    if isinstance(kind, Either):
        return [] if any(not faults(value, one, place) for one in kind.kinds) else unlike()
    if kind is float:
        return [] if isinstance(value, (int, float)) and not isinstance(value, bool) else unlike()
    return [] if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) else unlike()


def checked(value, kind, place):
    """`value` with the defaults of its record filled in, or Wrong."""
    if found := faults(value, kind, place):
        raise Wrong("\n".join(found))
    return filled(value, kind)


def filled(value, kind):
    if isinstance(kind, Record):
        known = {name: default for name, (_, default, _) in kind.fields.items() if default is not NEEDED}
        return {name: filled(one, kind.fields[name][0]) if name in value else one for name, one in (known | value).items()}
    if isinstance(kind, list):
        return [filled(one, kind[0]) for one in value]
    if isinstance(kind, Map):
        return {name: filled(one, kind.kind) for name, one in value.items()}
    return value


def reference(kind, title, told=None):
    """Markdown tables of a record and of the records in it; one that occurs several times is described once."""
    told = {} if told is None else told
    told[id(kind)] = title
    inner, rows = [], []
    for name, (one, default, text) in kind.fields.items():
        below = one[0] if isinstance(one, list) else one.kind if isinstance(one, Map) else one
        said = name_of(one).replace("|", "\\|")
        if isinstance(below, Record):
            if id(below) in told:
                text += f", as `{told[id(below)]}`"
            else:
                inner.append((below, f"{title}.{name}"))
        if default is not NEEDED and default not in (None, "", [], {}):
            text += f" (default: {str(default).lower() if isinstance(default, bool) else default})"
        rows.append(f"| `{name}` | {said}{'' if default is NEEDED else ', may be left out'} | {text} |")
    tables = f"`{title}`:\n\n| field | kind | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    return "\n".join([tables, *(reference(*one, told) for one in inner)])
