"""Plots as inline SVG. Colours are classes of the page's style sheet, so that they follow light and dark."""
import html
import math
import textwrap

WIDTH, LABEL, RIGHT = 980, 290, 200  # of a plot, its labels on the left, its figures on the right
BAR, GAP = 13, 10


def escape(text):
    return html.escape(str(text), quote=True)


def number(value):
    """Three significant digits, with thousands separators."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1e}"


def svg(width, height, parts, title):
    return (f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
            + "".join(parts) + "</svg>")


def text(x, y, words, css="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1, y1, x2, y2, css):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def fitted(words, room):
    """The words, shortened to about this many characters."""
    return words if len(words) <= room else words[: room - 1] + "…"


def label(x, y, words, room=44):
    """A label left of `x`, on two lines if it is long."""
    lines = textwrap.wrap(words, room) or [""]
    if len(lines) > 2:
        lines = [lines[0], fitted(" ".join(lines[1:]), room)]
    return "".join(text(x, y + 14 * at - 7 * (len(lines) - 1), one, "label", "end") for at, one in enumerate(lines))


def steps(top, count=5):
    """Round values from 0 to at least `top`."""
    if top <= 0:
        return [0, 1]
    raw = top / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    return [step * at for at in range(math.ceil(top / step - 1e-9) + 1)]


def bars(rows, title, unit):
    """Horizontal bars. `rows`: (label, [(css class, name, parts, spread, words)]); `parts` are stacked lengths, `spread` a
    standard deviation, `words` the text at the end."""
    rows = [(label, entries) for label, entries in rows if entries]
    top = max((sum(parts) + spread for _, entries in rows for _, _, parts, spread, _ in entries), default=0)
    ticks = steps(top)
    scale, y, out = (WIDTH - LABEL - RIGHT) / ticks[-1], 26, []
    height = 34 + sum(max(len(entries), 2) * (BAR + 2) + GAP for _, entries in rows)
    for tick in ticks:
        x = LABEL + tick * scale
        out += [line(x, 20, x, height - 10, "grid"), text(x, 13, number(tick), "tick", "middle")]
    out.append(text(WIDTH, 13, unit, "tick", "end"))
    for words_left, entries in rows:
        out.append(label(LABEL - 8, y + (len(entries) * (BAR + 2)) / 2 + 3, words_left))
        for css, name, parts, spread, words in entries:
            x = LABEL
            for at, part in enumerate(parts):
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{max(part * scale, 0.5):.1f}" height="{BAR}" class="{css}{" soft" if at else ""}">'
                           f"<title>{escape(name)}: {escape(words)}</title></rect>")
                x += part * scale
            if spread:
                out += [line(x - spread * scale, y + BAR / 2, x + spread * scale, y + BAR / 2, "whisker")]
            out.append(text(x + max(spread * scale, 0) + 5, y + BAR - 3, words, "figure"))
            y += BAR + 2
        y += GAP + (BAR + 2 if len(entries) < 2 else 0)
    return svg(WIDTH, height, out, title)


def ratios(rows, title):
    """Dots with their range around 1. `rows`: (label, median, lowest, highest, css class); None for a heading."""
    low = min([0.5, *(row[2] for row in rows if row[1] is not None)])
    high = max([1.2, *(min(row[3], 3) for row in rows if row[1] is not None)])
    left, right = math.floor(low * 10) / 10, math.ceil(high * 10) / 10
    begin = LABEL + 190
    scale = (WIDTH - begin - 70) / (right - left)
    height = 34 + sum(26 if row[1] is None else 18 for row in rows)
    place = lambda value: begin + (min(value, right) - left) * scale
    out, y = [], 30
    step = 0.1 if right - left <= 1.2 else 0.2 if right - left <= 2.4 else 0.5
    at = left
    while at <= right + 1e-9:
        out += [line(place(at), 20, place(at), height - 4, "grid"), text(place(at), 13, f"{at:.1f}", "tick", "middle")]
        at += step
    out.append(line(place(1), 18, place(1), height - 2, "one"))
    for words, median, lowest, highest, css in rows:
        if median is None:
            out.append(text(0, y + 12, words, "heading"))
            y += 26
            continue
        out += [text(begin - 12, y + 9, fitted(words, 78), "label", "end"), line(place(lowest), y + 5, place(highest), y + 5, f"range {css}"),
                f'<circle cx="{place(median):.1f}" cy="{y + 5}" r="4.5" class="{css}"><title>{escape(words)}: {median:.3f}</title></circle>',
                text(WIDTH, y + 9, f"{median:.2f}", "figure", "end")]
        y += 18
    return svg(WIDTH, height, out, title)


def curves(series, title, x_label, y_label, log_x=True, log_y=False, ticks=None):
    """Lines. `series`: (css class, name, [(x, y)]); `ticks`: {x: words} where the axis is not plain numbers."""
    wide, tall, left, bottom, head = 540, 250, 62, 40, 26
    points = [(x, y) for _, _, line_ in series for x, y in line_]
    if not points:
        return ""
    xs, ys = sorted({x for x, _ in points}), [y for _, y in points]
    log_x = log_x and xs[-1] > 0 and xs[-1] / max(min((x for x in xs if x > 0), default=1), 1e-9) > 50
    if log_x:  # zero stands a step left of the first
        first = math.log10(min(x for x in xs if x > 0))
        to = lambda x: math.log10(x) if x > 0 else first - 1
    else:
        to = lambda x: x
    lowest, highest = to(xs[0]), to(xs[-1])
    across = lambda x: left + (to(x) - lowest) / max(highest - lowest, 1e-9) * (wide - left - 24)
    if log_y:
        base, ceiling = math.floor(math.log10(max(min(ys), 1e-9))), math.ceil(math.log10(max(ys)) + 1e-9)
        up = lambda y: head + (1 - (math.log10(max(y, 10 ** base)) - base) / max(ceiling - base, 1)) * (tall - head - bottom)
        levels = [10 ** power for power in range(base, ceiling + 1)]
    else:
        levels = steps(max(ys) * 1.02)
        up = lambda y: head + (1 - y / levels[-1]) * (tall - head - bottom)
    out = [text(0, 12, y_label, "tick")]
    for level in levels:
        out += [line(left, up(level), wide - 20, up(level), "grid"), text(left - 6, up(level) + 4, number(level), "tick", "end")]
    for x in xs:
        words = ticks.get(x, "") if ticks else number(x) if x < 10_000 else short(x)
        out += [line(across(x), tall - bottom, across(x), tall - bottom + 4, "axis"), text(across(x), tall - bottom + 17, words, "tick", "middle")]
    out += [line(left, tall - bottom, wide - 20, tall - bottom, "axis"), text((left + wide) / 2, tall - 4, x_label, "tick", "middle")]
    for css, name, line_ in series:
        drawn = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(line_))
        out.append(f'<polyline points="{drawn}" class="curve {css}"/>')
        out += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" class="{css}"><title>{escape(name)}: {number(y)}</title></circle>' for x, y in line_]
    return svg(wide, tall, out, title)


def short(value):
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return number(value)
