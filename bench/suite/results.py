"""Results: one JSON with everything, and the figures computed from its runs."""
import statistics

from .shape import NEEDED, Choice, Either, Map, Record

VERSION = 1
SUMMED = ("rps", "cpu_us", "user_us", "system_us", "gateway_busy", "load_busy", "resident", "bytes_a_connection", "live_ms", "p99_before_us", "rps_at_the_end",
          "hits_a_day", "requests", "connections")
LATENCIES = ("mean", "stddev", "p50", "p75", "p90", "p95", "p99", "max")

SPREAD = Record(mean=(float, NEEDED, "mean over the runs"), stddev=(float, NEEDED, "standard deviation over the runs"))
LATENCY = Record(**{name: (float, None, f"{text}, in µs") for name, text in (
    ("mean", "mean"), ("stddev", "standard deviation"), ("p50", "median"), ("p75", "75th percentile"), ("p90", "90th percentile"),
    ("p95", "95th percentile"), ("p99", "99th percentile"), ("max", "longest"))})
RUN = Record(
    round=(int, NEEDED, "in which round; targets of one round ran one after the other"),
    length_s=(float, NEEDED, "seconds it was meant to take"),
    void=(str, NEEDED, "why it counts for nothing; empty when it counts"),
    notes=([str], [], "what weakens it"),
    stolen=(float, None, "largest share of a core's time that the host stole meanwhile"),
    again=(int, 0, "how often it was measured again since more than 5 % was stolen"),
    counts=(bool, True, "whether it counts: not when more than 5 % was stolen each time"),
    requests=(int, None, "requests answered"),
    seconds=(float, None, "seconds it took"),
    rps=(float, None, "requests answered a second"),
    rps_at_the_end=(float, None, "of a rush: in its last two seconds"),
    hits_a_day=(float, None, "of a rush: its requests as if they came all day"),
    cpu_us=(float, None, "µs of CPU of the gateway for a request"),
    user_us=(float, None, "of that in user space"),
    system_us=(float, None, "of that in the kernel"),
    gateway_busy=(float, None, "share of its cores that the gateway used"),
    load_busy=(float, None, "share of their cores that tool and origin used, the greater where they have their own"),
    tool_cpu=(float, None, "seconds of CPU of the tool"),
    resident=(int, None, "bytes of resident memory after it"),
    latency=(LATENCY, {}, "latencies that the tool saw"),
    errors=(Map(int), {}, "errors by class: connect, read, write, status, timeout, other"),
    connections=(int, None, "of highest: connections of the best run"),
    tried=([Record(connections=(int, NEEDED, "connections"), rps=(float, NEEDED, "requests a second"), mean_us=(float, NEEDED, "mean latency in µs"))], [],
           "of highest: what was tried"),
    bytes_a_connection=(float, None, "of idle: resident memory for each connection"),
    live_ms=(float, None, "of reload: milliseconds until the change served"),
    p99_before_us=(float, None, "of reload: p99 of the same load without a change"),
)
RESULT = Record(
    title=(str, NEEDED, "name of the target for a reader"),
    left_out=(str, NEEDED, "why it was not measured; empty when it was"),
    startup_s=(float, None, "seconds from start to the first right answer"),
    startup_memory=(int, None, "bytes of resident memory then"),
    configuration=(str, "", "its command and configuration, long ones cut"),
    complaints=([str], [], "faults in its error log; there should be none"),
    runs=([RUN], NEEDED, "its runs"),
    void=(str, "", "why the result counts for nothing: one run with errors is enough, or a fault in the log"),
    summary=(Map(SPREAD), {}, "figures of the runs, as in a run; latencies as latency.p50 and so on"),
    ratio=(Map(Record(to=(str, NEEDED, "the target it is divided by"), median=(float, NEEDED, "median over the rounds"),
                      lowest=(float, NEEDED, "lowest"), highest=(float, NEEDED, "highest"))), {}, "cpu_us and rps divided by another target's of the same round"),
    relative=(float, None, "throughput divided by that of the case named by relative_to, same target"),
    relative_cpu=(float, None, "CPU per request divided by that of the same case"),
    errors=(Map(int), {}, "errors of all runs by class"),
)
def figures_shape():
    number = Either(float, type(None))
    case = Record(
        id=(str, NEEDED, "name"), title=(str, NEEDED, "title"), group=(str, NEEDED, "group"), x=(number, NEEDED, "place on the group's curve"),
        load=(str, NEEDED, "tool and load"), kind=(str, NEEDED, "kind of load"), workers=(int, NEEDED, "workers of the gateway"),
        notes=([str], NEEDED, "what weakens the case"), published=([Map(Either(str, float))], NEEDED, "published figures, as in the scenario's file"),
        relative_to=(str, NEEDED, "the case it is relative to"), direct_rps=(number, None, "requests a second of the same load without a gateway"),
        results=(Map(RESULT), NEEDED, "results by target"))
    scenario = Record(
        id=(str, NEEDED, "name"), title=(str, NEEDED, "title"), source=(str, NEEDED, "publication"), machine=(str, NEEDED, "its machine"),
        method=(str, NEEDED, "its method"), here=(str, NEEDED, "what this suite does"), notes=([str], NEEDED, "what does not fit in the publication"),
        notes_here=([str], [], "what is so here"),
        direct=([Record(load=(str, NEEDED, "which load"), before_rps=(number, NEEDED, "requests a second before the scenario"),
                        after_rps=(number, NEEDED, "and after it"))], NEEDED, "tool and origin without a gateway"),
        warnings=([str], NEEDED, "what weakens the scenario"), cases=([case], NEEDED, "its cases"))
    return Record(
        version=(int, NEEDED, f"of this schema: {VERSION}"), profile=(str, NEEDED, "profile that was run"),
        started=(str, NEEDED, "date and time, UTC"), took_s=(float, NEEDED, "seconds it all took"), planned_s=(float, NEEDED, "seconds planned"),
        interrupted=(bool, NEEDED, "stopped before its end: what was measured is there"),
        machine=(Map(Either(str, int, float)), NEEDED, "model, cores, kernel, governor, busy_before, steal_before, steal"),
        cores=(Record(gateway=(str, NEEDED, "of the gateway"), load=(str, NEEDED, "of the tool"), origin=(str, NEEDED, "of the origin")), NEEDED, "whose cores"),
        preflight=([Record(check=(str, NEEDED, "what was looked at"), found=(str, NEEDED, "as it is"),
                           verdict=(Choice("ok", "note", "warning"), NEEDED, "how it is"), advice=(str, NEEDED, "what to do"))], NEEDED, "checks of the machine"),
        programs=(Map(str), NEEDED, "versions of targets, tools and origins"), skipped=(Map(str), NEEDED, "targets that were not found, and why"),
        scenarios=([scenario], NEEDED, "the scenarios"))


FIGURES = figures_shape()


def scenario(data):
    return {key: data[key] for key in ("id", "title", "source", "machine", "method", "here", "notes")} | {"notes_here": [], "direct": [], "warnings": [], "cases": []}


def case(within, data, workers, load):
    several = len(set(within["workers"])) > 1 and not data["workers"]
    return {
        "id": data["id"] + (f"-{workers}w" if several and workers > 1 else ""), "title": data["title"], "group": data["group"], "x": data["x"], "load": load,
        "kind": data["load"]["kind"], "workers": workers, "notes": [], "published": [{k: v for k, v in one.items() if v not in (None, "")} for one in data["published"]],
        "relative_to": data["relative_to"], "direct_rps": None, "results": {},
    }


def entry(name, title):
    return {"title": title, "left_out": "", "runs": []}


def close(into, reference):
    """Computes the figures of a case from its completed runs."""
    for name, result in into["results"].items():
        reckon(result)
    for name, result in into["results"].items():
        other = into["results"].get(reference)
        if reference and name != reference and not result.get("void") and other and not other.get("void"):
            result["ratio"] = {key: found for key in ("cpu_us", "rps") if (found := ratio(result, other, key, reference))}


def reckon(result):
    runs = result["runs"]
    errors = {}
    for run in runs:
        for kind, count in run.get("errors", {}).items():
            errors[kind] = errors.get(kind, 0) + count
    reasons = list(dict.fromkeys(run["void"] for run in runs if counts(run) and run["void"]))
    reasons += ["the host stole more than 5 % of a core in each run"] if runs and not any(map(counts, runs)) else []
    reasons += [f"its error log: {result['complaints'][0]}"] if result.get("complaints") else []
    result |= {"void": "; ".join(reasons), "errors": errors, "summary": {}}
    figures = [run | {f"latency.{key}": value for key, value in run.get("latency", {}).items()} for run in runs if counts(run) and not run["void"]]
    for key in (*SUMMED, *(f"latency.{name}" for name in LATENCIES)):
        values = [run[key] for run in figures if run.get(key) is not None]
        if values:
            result["summary"][key] = {"mean": statistics.fmean(values), "stddev": statistics.stdev(values) if len(values) > 1 else 0.0}


def counts(run):
    return run.get("counts", True)


def ratio(result, other, key, name):
    """Median, lowest and highest over the rounds that both have."""
    found = [a[key] / b[key] for a in result["runs"] for b in other["runs"] if a["round"] == b["round"] and counts(a) and counts(b) and a.get(key) and b.get(key)]
    return {"to": name, "median": statistics.median(found), "lowest": min(found), "highest": max(found)} if found else None


def relate(all_scenarios):
    """Throughput and CPU of each case relative to the case that it names, target by target."""
    for one in all_scenarios:
        by_place = {(each["id"], each["workers"]): each for each in one["cases"]}
        for each in one["cases"]:
            suffix = f"-{each['workers']}w" if each["id"].endswith(f"-{each['workers']}w") else ""
            base = by_place.get((each["relative_to"] + suffix, each["workers"]))
            for name, result in each["results"].items():
                known = (base or {}).get("results", {}).get(name)
                if known and not known.get("void") and not result.get("void"):
                    for key, into in (("rps", "relative"), ("cpu_us", "relative_cpu")):
                        if (a := mean(result, key)) and (b := mean(known, key)):
                            result[into] = a / b


def mean(result, key):
    return result.get("summary", {}).get(key, {}).get("mean")


def published_relative(one_scenario, each, label):
    """The publication's loss or gain from the case that `each` is relative to, to `each` itself."""
    def of(found):
        return next((row["rps"] for row in found["published"] if row["label"] == label and row.get("rps")), None)
    base = next((other for other in one_scenario["cases"] if other["id"] == each["relative_to"]), None)
    return of(each) / of(base) if base and of(each) and of(base) else None
