"""Templates of configuration files: text with `${name}` in it, and lines that begin with `%`:

    % for r in routes      ... ${r.prefix} ...      % end
    % if key-auth          ...   % else   ...       % end
    % if not key-auth
    % if workers == 1

There is no other syntax: anything else that a configuration needs belongs into the values."""
import re

PLACE = re.compile(r"\$\{([a-z][\w.-]*)\}")


class Fault(Exception):
    """A template that cannot be rendered: line and reason."""


def render(text, values):
    """The text with everything filled in."""
    lines = text.splitlines(keepends=True)
    block, at = parse(lines, 0, None)
    out = []
    write(block, values, out)
    return "".join(out)


def parse(lines, at, opened):
    """A list of steps up to the `% end` (or `% else`) of the block that line `opened` began, and the line after it."""
    steps = []
    while at < len(lines):
        line = lines[at]
        words = line.strip()[1:].split() if line.lstrip().startswith("% ") else []
        if not words:
            pieces = PLACE.split(line)
            steps.append(("text", pieces[::2], pieces[1::2], at + 1))
            at += 1
        elif words[0] == "for" and len(words) == 4 and words[2] == "in":
            body, after = parse(lines, at + 1, at)
            if lines[after - 1].split()[1] != "end":
                raise Fault(f"line {after}: else belongs to if")
            steps.append(("for", words[1], words[3], body, at + 1))
            at = after
        elif words[0] == "if" and len(words) in (2, 3, 4):
            then, after = parse(lines, at + 1, at)
            other = []
            if lines[after - 1].split()[1] == "else":
                other, after = parse(lines, after, at)
            steps.append(("if", words[1:], then, other, at + 1))
            at = after
        elif words in (["end"], ["else"]) and opened is not None:
            return steps, at + 1
        else:
            raise Fault(f"line {at + 1}: not understood: {line.strip()}")
    if opened is not None:
        raise Fault(f"line {opened + 1}: no end")
    return steps, at


def write(steps, values, out):
    for step in steps:
        if step[0] == "text":
            _, texts, names, line = step
            out.append(texts[0])
            for name, text in zip(names, texts[1:]):
                out.append(str(look_up(name, values, line)))
                out.append(text)
        elif step[0] == "for":
            _, name, source, body, line = step
            for one in look_up(source, values, line):
                write(body, {**values, name: one}, out)
        else:
            _, words, then, other, line = step
            write(then if holds(words, values, line) else other, values, out)


def holds(words, values, line):
    if words[0] == "not":
        return not holds(words[1:], values, line)
    if len(words) == 3 and words[1] == "==":
        return str(look_up(words[0], values, line)) == words[2]
    if len(words) != 1:
        raise Fault(f"line {line}: not understood: if {' '.join(words)}")
    return bool(look_up(words[0], values, line))


def look_up(name, values, line):
    for part in name.split("."):
        if not isinstance(values, dict) or part not in values:
            raise Fault(f"line {line}: there is no {name}")
        values = values[part]
    return values
