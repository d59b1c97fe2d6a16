"""Tables in Markdown: a short one for the README, and one for each scenario for docs/performance.md."""
import re
import textwrap

from .page import ORDER, SUBJECT, published_words
from .plots import number
from .results import mean

# scenario/case as the README shows them, with its own words
SHORT = (
    ("api7/none-1", "proxying, no plugin"),
    ("api7/limit-count-1", "limit-count"),
    ("api7/key-auth-1", "key-auth"),
    ("api7/key-auth-limit-count-100", "key-auth and limit-count, 100 routes, 100 consumers"),
    ("api7/mocking-1", "an answer of the gateway's own (mocking)"),
    ("kong/proxy-1", "HTTPS, no plugin"),
    ("kong/rate-key-100", "HTTPS, rate limit and key-auth, 100 routes, 100 consumers"),
    ("kong/rate-basic-100", "HTTPS, rate limit and basic-auth, 100 routes, 100 consumers"),
    ("apisix-2cpu/ten", "HTTPS on both sides, 10 connections"),
    ("3scale/closed", "key in the query and a limit, 1,000 connections"),
    ("scale/plugins-10", "ten plugins at once"),
    ("scale/routes-100000", "100,000 routes"),
    ("scale/consumers-1000000", "key-auth, 1,000,000 consumers"),
)


# Files, and the marks around the part of the tables in each.
PLACES = (("README.md", "bench"), ("docs/performance.md", "bench-tables"))


def render(figures):
    """Both parts between their marks."""
    return "\n".join(f"<!-- {mark} -->\n{text}<!-- /{mark} -->\n" for mark, text in parts(figures).items())


def parts(figures):
    machine = figures["machine"]
    kernel = ".".join(machine["kernel"].split(".")[:2])
    said = (f"Measured on {figures['started'][:10]} with `make bench PROFILE={figures['profile']}` ({machine['model']}, {machine['cores']} cores, kernel {kernel}; "
            f"{versions(figures)}).")
    if figures["interrupted"]:
        said += " The run was stopped before its end."
    readme = filled(f"{said} Each target has its own best configuration. All cases, with the published figures beside them, stand in "
                    "[docs/performance.md](docs/performance.md#published-benchmarks-repeated); [docs/benchmarks.md](docs/benchmarks.md) tells how to repeat them on your machine.")
    tables = filled(f"{said} [benchmarks.md](benchmarks.md) tells how. CPU per request is divided by nginx's of the same round: the median, and from the lowest to the highest.")
    return {"bench": f"### Beside others, in the cases of published benchmarks\n\n{short(figures)}\n\n{readme}",
            "bench-tables": "\n".join(["## Published benchmarks, repeated", "", tables, *(whole(scenario) for scenario in figures["scenarios"])])}


def filled(words):
    return textwrap.fill(words, 118, break_long_words=False, break_on_hyphens=False) + "\n"


def update(top, figures):
    """Writes the parts into the documents. Every mark must exist."""
    for name, mark in PLACES:
        file = top / name
        before, first, rest = file.read_text().partition(f"<!-- {mark} -->\n")
        _, last, after = rest.partition(f"<!-- /{mark} -->")
        if not (first and last):
            raise ValueError(f"{name}: no <!-- {mark} --> … <!-- /{mark} -->")
        file.write_text(before + first + parts(figures)[mark] + last + after)


def versions(figures):
    """Names and versions of the programs that Weir is compared with."""
    titles = {name: result["title"] for scenario in figures["scenarios"] for case in scenario["cases"] for name, result in case["results"].items()}
    found = ((titles[name], re.search(r"\d+(\.\d+)+", told)) for name, told in figures["programs"].items() if name in titles and name != SUBJECT)
    return ", ".join(f"{title} {number_[0]}" if number_ else title for title, number_ in found)


def short(figures):
    """CPU per request of each target, one line per case."""
    cases = {f"{scenario['id']}/{case['id']}": case for scenario in figures["scenarios"] for case in scenario["cases"]}
    chosen = [(words, cases[place]) for place, words in SHORT if place in cases]
    names = sorted({name: 0 for _, case in chosen for name in case["results"] if name != "direct"}, key=order)
    title = {name: next(case["results"][name]["title"] for _, case in chosen if name in case["results"]) for name in names}
    lines = ["| CPU per request, µs | " + " | ".join(title.values()) + " | Weir / nginx |", "|---|" + "---|" * (len(names) + 1)]
    for words, case in chosen:
        cells = [cell(case["results"].get(name), "cpu_us") for name in names]
        lines.append(f"| {words} | " + " | ".join(cells) + f" | {ratio(case['results'].get(SUBJECT))} |")
    return "\n".join(lines)


def order(name):
    return ORDER.index(name) if name in ORDER else len(ORDER)


def cell(result, key):
    if not result or result["left_out"]:
        return "–"
    if result["void"]:
        return "void"
    value = mean(result, key)
    return f"{value:.1f}" if value else "–"


def ratio(result, key="cpu_us", spread=False):
    found = (result or {}).get("ratio", {}).get(key)
    if not found:
        return "–"
    return f"{found['median']:.2f}" + (f" ({found['lowest']:.2f} to {found['highest']:.2f})" if spread else "")


def whole(scenario):
    lines = [f"### {scenario['title']}", ""]
    if scenario["machine"] != "none":
        lines += [f"Published: {scenario['source']}; {scenario['machine']}.", ""]
    head = ["case", "target", "req/s", "CPU/req µs (user)", "p50 ms", "p99 ms", "memory MiB", "CPU, ratio", "published"]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for case in scenario["cases"]:
        published = "; ".join(f"{published_words(row)} ({row['label']})" for row in case["published"])
        title = case["title"]
        for name, result in sorted(case["results"].items(), key=lambda one: order(one[0])):
            lines.append("| " + " | ".join([title, result["title"], *figures_of(result), published]) + " |")
            title = published = ""
    return "\n".join([*lines, ""])


def figures_of(result):
    if result["left_out"] or result["void"]:
        reason = result["left_out"] or f"void: {result['void']}"
        return [reason[:120].replace("|", "/").replace("\n", " "), "", "", "", "", ""]
    cpu, user = mean(result, "cpu_us"), mean(result, "user_us")
    special = [f"{mean(result, key):,.0f} {words}" for key, words in (("bytes_a_connection", "bytes a connection"), ("live_ms", "ms until live")) if mean(result, key) is not None]
    rps = number(mean(result, "rps")) if mean(result, "rps") else ""
    return [", ".join([*([rps] if rps else []), *special]), f"{cpu:.2f} ({user:.2f})" if cpu and user is not None else f"{cpu:.2f}" if cpu else "",
            *(number(value / 1000) if (value := mean(result, f"latency.{key}")) is not None else "" for key in ("p50", "p99")),
            f"{mean(result, 'resident') / 2**20:.0f}" if mean(result, "resident") else "", ratio(result, spread=True)]
