"""The page: one HTML file with everything in it, light or dark as the reader's system is."""
import statistics

from . import results
from .plots import bars, curves, escape, number, ratios
from .results import mean

SUBJECT = "weir"
ORDER = ("weir", "nginx", "haproxy", "apisix", "kong", "tyk", "envoy", "traefik", "krakend", "direct")
PERCENT = {50: 1.0, 75: 2.0, 90: 3.32, 95: 4.32, 99: 6.64}  # places of percentiles: each halving of the rest is a step
GROUPS = {"routes": "number of routes", "consumers": "number of consumers", "plugins": "number of plugins", "bodies": "bytes of a body",
          "connections": "number of connections"}

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --soft: #5b6675; --line: #dfe4ea; --panel: #f5f7f9; --warn: #9a4b00; --warn-back: #fff4e5;
  --c0: #1f5fd0; --c1: #d9761a; --c2: #1a8f72; --c3: #a23bb0; --c4: #c8323c; --c5: #7a6a00; --c6: #0f8bb5; --c7: #6b5bd6; --c8: #8a5a3c; --c9: #7d8794; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --text: #e4e9ef; --soft: #9ba7b5; --line: #2b333d; --panel: #1a2028; --warn: #ffb865; --warn-back: #2c2113;
  --c0: #6ea2ff; --c1: #f5a352; --c2: #45c9a5; --c3: #d583e0; --c4: #f2777e; --c5: #d6c34a; --c6: #58c4ea; --c7: #a79bff; --c8: #cf9a76; --c9: #98a3b0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1160px; padding: 28px 24px 80px; background: var(--back); color: var(--text); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 28px; margin: 0 0 4px; } h2 { font-size: 21px; margin: 52px 0 6px; padding-top: 18px; border-top: 1px solid var(--line); }
h3 { font-size: 16px; margin: 28px 0 6px; } p { margin: 6px 0; max-width: 80ch; } a { color: var(--c0); }
.soft { color: var(--soft); } .lead { font-size: 17px; margin: 14px 0; }
nav { margin: 14px 0; display: flex; flex-wrap: wrap; gap: 4px 16px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 8px 0; } dt { color: var(--soft); } dd { margin: 0; max-width: 76ch; }
svg { width: 100%; height: auto; display: block; margin: 4px 0 10px; font-size: 11.5px; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(430px, 1fr)); gap: 6px 26px; } figure { margin: 0; min-width: 0; } figcaption { font-size: 13px; color: var(--soft); }
svg text { fill: var(--text); } svg .tick { fill: var(--soft); } svg .figure { fill: var(--soft); font-variant-numeric: tabular-nums; } svg .heading { font-weight: 600; font-size: 12.5px; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); } svg .one { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 3; } svg .whisker { stroke: var(--text); stroke-width: 1.2; }
svg .range { stroke-width: 2; opacity: .55; } svg .curve { fill: none; stroke-width: 2; } svg rect.soft { opacity: .45; } svg rect.published { fill: none; stroke: var(--soft); stroke-dasharray: 3 2; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: 13px; margin: 6px 0; } .legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 12.5px; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; } th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
th.l, td.l { text-align: left; white-space: normal; } tr.case td { padding-top: 14px; border-bottom: 1px solid var(--soft); } td.void { color: var(--warn); white-space: normal; text-align: left; } tr.subject td { font-weight: 600; } td.l.name { white-space: nowrap; } tr.subject td.l.name { color: var(--c0); } tr.subject .soft { font-weight: 400; }
.note { background: var(--warn-back); color: var(--warn); padding: 8px 14px; border-radius: 6px; margin: 10px 0; font-size: 14px; } .note ul { margin: 4px 0; padding-left: 20px; }
.panel { background: var(--panel); border-radius: 6px; padding: 10px 16px; margin: 12px 0; } details { margin: 6px 0; } summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
pre { background: var(--panel); padding: 10px 14px; border-radius: 6px; overflow: auto; max-height: 420px; font-size: 12px; line-height: 1.4; }
@media print { details { display: none; } }
"""


def render(figures):
    body = [head(figures), glance(figures), machine(figures), *(scenario(one) for one in figures["scenarios"]), method(figures)]
    colours = "".join(f"svg .{name} {{ fill: var(--c{at}); stroke: none; }} svg .curve.{name}, svg .range.{name} {{ stroke: var(--c{at}); fill: none; }} "
                      f".legend i.{name} {{ background: var(--c{at}); }}\n" for at, name in enumerate(ORDER))
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>Weir: benchmarks</title><style>{STYLE}{colours}</style></head>\n<body>{''.join(body)}</body></html>\n")


def names_in(cases):
    found = {name: result["title"] for case in cases for name, result in case["results"].items() if not result["left_out"]}
    return {name: found[name] for name in sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))}


def legend(names, stacked=False):
    marks = "".join(f'<span><i class="{name}"></i>{escape(title)}</span>' for name, title in names.items())
    return f'<div class="legend">{marks}{"<span class=soft>full colour: user space, light: kernel</span>" if stacked else ""}</div>'


def head(figures):
    machine = figures["machine"]
    links = "".join(f'<a href="#{one["id"]}">{escape(one["title"].split(":")[0])}</a>' for one in figures["scenarios"])
    void = [(scenario, case, result) for scenario, case, result in measured(figures) if result["void"]]
    said = ""
    if figures["interrupted"]:
        said += '<div class="note">This run was stopped before its end: what was measured until then is here.</div>'
    if void:
        rows = "".join(f"<li>{escape(scenario['id'])}, {escape(case['title'])}, {escape(result['title'])}: {escape(result['void'][:240])}</li>" for scenario, case, result in void)
        said += f'<div class="note">Void, and in no plot or ratio: <ul>{rows}</ul></div>'
    return (f"<h1>Benchmarks</h1><p class=soft>{escape(figures['started'])}, profile {escape(figures['profile'])}, {figures['took_s'] / 60:.0f} minutes, on "
            f"{escape(machine['model'])} with {machine['cores']} cores, kernel {escape(machine['kernel'])}</p><nav>{links}<a href=\"#method\">Method</a></nav>{said}")


def measured(figures):
    for scenario in figures["scenarios"]:
        for case in scenario["cases"]:
            for result in case["results"].values():
                if not result["left_out"]:
                    yield scenario, case, result


def glance(figures):
    rows, found = [], []
    for one in figures["scenarios"]:
        mine = []
        for case in one["cases"]:
            ratio = case["results"].get(SUBJECT, {}).get("ratio", {}).get("cpu_us")
            if ratio and ratio["to"] == "nginx":
                mine.append((case["title"], ratio["median"], ratio["lowest"], ratio["highest"], SUBJECT))
                found.append(ratio["median"])
        if mine:
            rows += [(one["title"], None, None, None, ""), *mine]
    if not found:
        return ""
    less = sum(ratio < 1 for ratio in found)
    return (f"<p class=lead>In {less} of {len(found)} cases Weir spends less CPU on a request than nginx in the same case; the median of the ratios is "
            f"{statistics.median(found):.2f}.</p><h3>CPU per request: Weir divided by nginx</h3><p class=soft>Left of the dashed line Weir needs less. A dot is the median of "
            f"the rounds, the line behind it reaches from the lowest to the highest.</p>{ratios(rows, 'CPU per request of Weir divided by that of nginx')}")


def machine(figures):
    rows = "".join(f'<tr><td class=l>{escape(row["check"])}</td><td class=l>{escape(row["found"])}</td><td class=l>{escape(row["verdict"])}</td><td class=l>{escape(row["advice"])}</td></tr>'
                   for row in figures["preflight"])
    bad = [row for row in figures["preflight"] if row["verdict"] == "warning"]
    told = f'<div class="note">{"; ".join(escape(row["check"] + ": " + row["found"]) for row in bad)}</div>' if bad else ""
    cores = figures["cores"]
    shared = " Tool and origin share cores, so requests a second end where theirs end: CPU per request is the figure to compare." if cores["load"] == cores["origin"] else ""
    left = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in figures["skipped"].items())
    return (f"<h3>The machine</h3><p>Gateway on cores {escape(cores['gateway'])}, load tool on {escape(cores['load'])}, origin on {escape(cores['origin'])}.{shared}</p>{told}"
            f"<details><summary>Checks before the start, programs, targets that are not here</summary><div class=scroll><table><tr><th class=l>check<th class=l>found<th class=l>verdict<th class=l>advice</tr>{rows}</table></div>"
            f"<ul>{''.join(f'<li>{escape(name)}: {escape(told)}</li>' for name, told in figures['programs'].items())}</ul>"
            + (f"<p>Left out:</p><ul>{left}</ul>" if left else "") + "</details>")


def scenario(one):
    notes = "".join(f"<li>{escape(note)}</li>" for note in one["notes"])
    warnings = "".join(f"<li>{escape(note)}</li>" for note in one["warnings"])
    facts = "" if one["machine"] == "none" else (f"<dt>Publication<dd>{escape(one['source'])}<dt>Its machine<dd>{escape(one['machine'])}<dt>Its method<dd>{escape(one['method'])}")
    out = [f'<h2 id="{one["id"]}">{escape(one["title"])}</h2><dl>{facts}<dt>Here<dd>{escape(" ".join([one["here"], *one["notes_here"]]))}</dl>']
    if notes:
        out.append(f"<details><summary>What does not fit together in the publication</summary><ul>{notes}</ul></details>")
    if warnings:
        out.append(f'<div class="note"><ul>{warnings}</ul></div>')
    groups = {}
    for case in one["cases"]:
        groups.setdefault(case["group"], []).append(case)
    for name, cases in groups.items():
        out.append(group(one, name, cases))
    return "".join(out)


def group(one, name, cases):
    names, kinds = names_in(cases), {case["kind"] for case in cases}
    curve = name in GROUPS and sum(case["x"] is not None for case in cases) > 2
    rates = not curve and kinds & {"closed", "rate", "rush", "highest"}
    out = [f"<h3>{escape(name[:1].upper() + name[1:])}</h3>" if name else "", legend(names, stacked=rates) if curve or rates else ""]
    if curve:
        out.append('<div class="plots">' + "".join(
            f"<figure><figcaption>{escape(title)}</figcaption>{plot}</figure>" for title, plot in (
                ("CPU per request, µs", scaling(cases, names, "cpu_us", GROUPS[name])), ("requests a second", scaling(cases, names, "rps", GROUPS[name])),
                ("start-up, s", scaling(cases, names, "startup_s", GROUPS[name])) if name in ("routes", "consumers") else ("p99, ms", scaling(cases, names, "latency.p99", GROUPS[name], 1000)),
                ("resident memory, MiB", scaling(cases, names, "resident", GROUPS[name], 2**20))) if plot) + "</div>")
    elif rates:
        out.append("<p class=soft>CPU per request, µs</p>" + bars([(case["title"], cpu_bars(case)) for case in cases], f"{one['title']}: CPU per request", "µs"))
        other = "" if one["machine"] == "none" else f" (dashed: as published, on {escape(one['machine'])})"
        out.append(f"<p class=soft>Requests a second{other}</p>" + bars([(case["title"], rate_bars(case)) for case in cases], f"{one['title']}: requests a second", "req/s"))
        relative = [row for case in cases if (row := relative_row(one, case))]
        if relative:
            out.append(relative_table(one, cases, relative))
    shown = [] if curve else cases if len(cases) < 3 else [cases[0], cases[-1]]
    if spread := latency_plots(shown):
        out.append(f"<p class=soft>Latency, ms, by percentile</p><div class=plots>{spread}</div>")
    rest = latency_plots([case for case in cases if case not in shown])
    out.append(table(cases, closed=curve))
    if rest:
        out.append(f"<details><summary>Latency distribution of {'every case' if curve else 'the other cases'}</summary><div class=plots>{rest}</div></details>")
    out.append(configurations(cases))
    return "".join(out)


def good(case):
    return [(name, result) for name, result in case["results"].items() if not result["left_out"] and not result["void"] and result["summary"]]


def cpu_bars(case):
    rows = []
    for name, result in good(case):
        total = result["summary"].get("cpu_us")
        if total and total["mean"]:
            user, system = mean(result, "user_us") or 0, mean(result, "system_us") or 0
            rows.append((name, result["title"], [user, system], total["stddev"], f"{total['mean']:.1f}" + ratio_words(result, "cpu_us")))
    return rows


def rate_bars(case):
    rows = [(name, result["title"], [rps["mean"]], rps["stddev"], number(rps["mean"]) + ratio_words(result, "rps"))
            for name, result in good(case) if (rps := result["summary"].get("rps"))]
    said = [("published", "published", [row["rps"]], 0, f"{number(row['rps'])} published, {row['label']}") for row in case["published"] if row.get("rps")]
    return rows + said if rows else []


def ratio_words(result, key):
    ratio = result.get("ratio", {}).get(key)
    return f" ({ratio['median']:.2f} of {ratio['to']})" if ratio else ""


def scaling(cases, names, key, x_label, divisor=1):
    series = []
    for name in names:
        line = []
        for case in cases:
            result = case["results"].get(name)
            if result and not result["left_out"] and not result["void"] and case["x"] is not None:
                value = result.get("startup_s") if key == "startup_s" else mean(result, key)
                if value:
                    line.append((case["x"], value / divisor))
        if line:
            series.append((name, names[name], line))
    values = [value for _, _, line in series for _, value in line]
    ticks = {case["x"]: octets(case["x"]) for case in cases} if x_label.startswith("bytes") else None
    return curves(series, f"{x_label}: {key}", x_label, "", log_y=bool(values) and max(values) > 20 * min(values), ticks=ticks)


def octets(count):
    """A number of bytes as people name it."""
    for size, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def latency_plots(cases):
    out = []
    for case in cases:
        series = []
        for name, result in good(case):
            line = [(place, value / 1000) for percent, place in PERCENT.items() if (value := mean(result, f"latency.p{percent}"))]
            if line:
                series.append((name, result["title"], line))
        if series and case["kind"] != "idle":
            plot = curves(series, f"latency: {case['title']}", "percentile of requests", "", log_x=False, log_y=True,
                          ticks={place: str(percent) for percent, place in PERCENT.items()})
            out.append(f"<figure><figcaption>{escape(case['title'])}</figcaption>{plot}</figure>")
    return "".join(out)


def relative_row(one, case):
    if not case["relative_to"] or case["relative_to"] == case["id"]:
        return None
    published = [(row["label"], results.published_relative(one, case, row["label"])) for row in case["published"]]
    mine = {name: (result.get("relative"), result.get("relative_cpu")) for name, result in case["results"].items()}
    return (case["title"], mine, [(label, value) for label, value in published if value]) if any(a for a, _ in mine.values()) else None


def relative_table(one, cases, rows):
    names = names_in(cases)
    base = next(case["title"] for each in one["cases"] if each["id"] == next(c["relative_to"] for c in cases if c["relative_to"]) for case in [each])
    body = ""
    for title, mine, published in rows:
        cells = "".join(f"<td>{percent(mine.get(name, (None, None))[0])}<td>{percent(mine.get(name, (None, None))[1])}" for name in names)
        body += f"<tr><td class=l>{escape(title)}{cells}<td>{'<br>'.join(f'{percent(value)} <span class=soft>{escape(label)}</span>' for label, value in published)}</tr>"
    heads = "".join(f"<th>{escape(title)}: req/s<th>CPU" for title in names.values())
    return (f"<h3>What it costs, relative to: {escape(base)}</h3><p class=soft>Throughput and CPU per request with that case as 100 %. This compares with the publication across machines; absolute figures do not.</p>"
            f"<div class=scroll><table><tr><th class=l>case{heads}<th>published req/s</tr>{body}</table></div>")


def percent(value):
    return f"{100 * value:.0f} %" if value else ""


COLUMNS = (("rps", "req/s", 1), ("cpu_us", "CPU/req µs", 1), ("user_us", "user", 1), ("system_us", "system", 1), ("latency.mean", "mean ms", 1000),
           ("latency.p50", "p50", 1000), ("latency.p75", "p75", 1000), ("latency.p90", "p90", 1000), ("latency.p95", "p95", 1000), ("latency.p99", "p99", 1000),
           ("latency.max", "max", 1000), ("resident", "memory MiB", 2**20))
EXTRA = (("bytes_a_connection", "bytes a connection", 1), ("live_ms", "change live after ms", 1), ("p99_before_us", "p99 without a change, ms", 1000),
         ("rps_at_the_end", "req/s at the end", 1), ("hits_a_day", "hits a day", 1), ("connections", "connections", 1))


def table(cases, closed):
    extra = [column for column in EXTRA if any(mean(result, column[0]) is not None for case in cases for result in case["results"].values())]
    idle = all(case["kind"] == "idle" for case in cases)
    extra += [("requests", "requests", 1)] if any(case["kind"] == "rush" for case in cases) else []
    columns = [*extra, *(() if idle else COLUMNS[:-1]), COLUMNS[-1]]
    heads = "".join(f"<th>{escape(title)}" for _, title, _ in columns)
    body = "".join(case_rows(case, columns) for case in cases)
    return f"<details{'' if closed else ' open'}><summary>All figures (mean ± standard deviation of the runs)</summary><div class=scroll><table><tr><th class=l>target{heads}<th>start-up<th class=l>errors</tr>{body}</table></div></details>"


def case_rows(case, columns):
    """A line that tells the case, then one for each target."""
    direct = [f"without a gateway {case['direct_rps']:,.0f} req/s"] if case["direct_rps"] else []
    facts = [case["load"], *direct, *case["notes"], *(f"published ({row['label']}): {published_words(row)}" for row in case["published"])]
    workers = f", {case['workers']} workers" if case["workers"] > 1 else ""
    out = [f'<tr class=case><td class=l colspan={len(columns) + 3}><b>{escape(case["title"])}</b>{workers} <span class=soft>{escape(" · ".join(facts))}</span></tr>']
    for name, result in case["results"].items():
        out.append(f'<tr class="{"subject" if name == SUBJECT else ""}"><td class="l name">{escape(result["title"])}')
        if result["left_out"] or not result["summary"]:
            words = result["left_out"] or (f"void: {result['void']}" if result["void"] else "not measured")
            out.append(f"<td class=void colspan={len(columns) + 2}>{escape(words[:240])}</tr>")
            continue
        for key, _, divisor in columns:
            found = result["summary"].get(key)
            words = "" if not found else number(found["mean"] / divisor)
            if found and found["stddev"] and key in ("rps", "cpu_us"):
                words += f' <span class=soft>± {number(found["stddev"] / divisor)}</span>'
            out.append(f"<td>{words}")
        errors = ", ".join(f"{count:,} {kind}" for kind, count in result["errors"].items()) or "none"
        remarks = sorted({note for run in result["runs"] for note in run.get("notes", [])})
        words = f"void: {result['void'][:160]}" if result["void"] else errors
        startup = f'{result["startup_s"]:.2f} s, {result["startup_memory"] / 2**20:.0f} MiB' if result.get("startup_s") is not None else ""
        remark = "".join(f"<br><span class=soft>{escape(one)}</span>" for one in remarks)
        out.append(f'<td>{startup}<td class="l{" void" if result["void"] else ""}">{escape(words)}{remark}</tr>')
    return "".join(out)


def published_words(row):
    words = [f"{row[key]:,g} {unit}" for key, unit in (("rps", "req/s"), ("mean_ms", "ms mean"), ("p50_ms", "ms p50"), ("p95_ms", "ms p95"), ("p99_ms", "ms p99")) if row.get(key)]
    return ", ".join([*words, *([row["errors"]] if row.get("errors") else [])])


def configurations(cases):
    shown = "".join(f"<details><summary>{escape(case['title'])}: {escape(result['title'])}</summary><pre>{escape(result['configuration'])}</pre></details>"
                    for case in cases for result in case["results"].values() if result.get("configuration"))
    return f"<details><summary>Configurations, as each target had them</summary>{shown}</details>" if shown else ""


def method(figures):
    return f"""<h2 id="method">Method</h2>
<ul>
<li>Every target runs alone on its cores; those of one case take turns, round after round (A B A B), and a ratio is taken within a round.</li>
<li>CPU per request is what the kernel charged the target's processes, user and system, divided by the requests answered. It is the steadiest figure, and where tool and origin share a core it is the one to compare.</li>
<li>Before each run a target's answers are checked, with credentials and without. A run with any error is void, and so is a case after which the target's error log holds a fault.</li>
<li>Constant rates are measured from when a request was due, not from when it could be sent (coordinated omission).</li>
<li>Published figures come from other machines and other years. What compares across machines is the cost relative to the same gateway without plugins.</li>
</ul>
<p class="soft">Made by <code>make bench PROFILE={escape(figures['profile'])}</code>. {100 * float(figures['machine'].get('steal', 0)):.1f} % of the processors' time was stolen by the host meanwhile.</p>"""
