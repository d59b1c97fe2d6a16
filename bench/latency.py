#!/usr/bin/env python3
"""Latency at half of nginx's highest rate: p50 and p99 of Weir against nginx, over HTTP/1.1 and over HTTP/2 with TLS.

The highest rate of nginx is measured first, with the load of quick.py. Then both get half of it, at a constant rate, by oha:
latency counts from the moment at which a request was due, so a program that stalls does not hide the requests that it held up
(coordinated omission). Programs and cores are those of quick.py; in each round nginx and Weir run one right after the other.

    bench/install-tools                               # builds oha
    bench/latency.py --weir target/dist/weir [--seconds 5] [--rounds 3] [--json OUT]
"""
import argparse
import json
import pathlib
import statistics
import sys

import programs
import quick
import streams
from programs import Failure
from suite import tools

# name, subject, reference, the load that finds the highest rate, connections, what oha is told beside
CASES = [
    ("HTTP/1.1", "weir bare", "nginx bare", "plain", programs.CONNECTIONS, []),
    ("HTTP/2 over TLS", "weir https http2", "nginx http2", "streams", streams.CONNECTIONS, ["--http2", "-p", str(streams.STREAMS)]),
]
PERCENTILES = ("p50", "p99")
AIM = 1.0


def at_rate(run, program, rate, connections, more, seconds):
    """Figures of oha at a constant rate."""
    load = {"connections": connections, "rate": rate, "timeout": 10}
    command = [*tools.oha(program.origin(), load, seconds, 1, run.folder, [("/", {})]), *more]
    output, _ = tools.run(command, str(programs.LOAD_CORE), seconds, run.folder)
    return tools.read_oha(output)


def summarise(case, rate, measured):
    """One dict: medians of both sides, the ratios within rounds, and the verdict. `measured` has a pair of figures for each
    round, the subject's first."""
    row = {"case": case, "rate": rate, "verdict": "PASS"}
    wrong = sorted({kind for pair in measured for one in pair for kind in one["errors"]})
    if wrong or not measured:
        return row | {"verdict": "VOID", "reasons": wrong or ["nothing was measured"]}
    for name in PERCENTILES:
        sides = [[one["latency"][name] for one in side] for side in zip(*measured)]
        ratios = [subject / max(reference, 1e-9) for subject, reference in zip(*sides)]
        row[name] = {"subject": statistics.median(sides[0]), "reference": statistics.median(sides[1]), "ratio": statistics.median(ratios)}
        if round(row[name]["ratio"], 2) > AIM:
            row["verdict"] = "MISS"
    return row


def measure(run, case, started, walks, options):
    name, subject, reference, load, connections, more = case
    highest = quick.traffic(run, started[reference], load, walks[load], options.seconds)
    if highest["void"]:
        raise Failure(f"{reference}: {highest['void']}")
    rate = int(highest["rps"] / 2)
    measured = []
    for _ in range(options.rounds):
        figures = {program: at_rate(run, started[program], rate, connections, more, options.seconds) for program in (reference, subject)}
        measured.append((figures[subject], figures[reference]))
    return summarise(name, rate, measured)


def main():
    top = pathlib.Path(__file__).resolve().parent.parent / "target/dist"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=top / "weir", metavar="PATH", help="the gateway (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=5, help="length of one run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs (default: %(default)s)")
    parser.add_argument("--json", metavar="OUT", help="write the figures there")
    options = parser.parse_args()
    if not tools.find("oha"):
        raise Failure("oha is missing: run bench/install-tools")
    rows, broken, walks = [], {}, quick.requests()
    with programs.Programs() as run:
        needed = [program for _, subject, reference, *_ in CASES for program in (reference, subject)]
        started = quick.start(run, needed, options, broken)
        if broken:
            raise Failure("; ".join(f"{name}: {reason}" for name, reason in broken.items()))
        for case in CASES:
            rows.append(measure(run, case, started, walks, options))
    for row in rows:
        print(f"{row['case']} at {row['rate']:,} requests a second: {row['verdict']} {', '.join(row.get('reasons', []))}")
        for name in PERCENTILES if "p50" in row else ():
            one = row[name]
            print(f"  {name}: {one['subject']:,.0f} µs, nginx {one['reference']:,.0f} µs: {one['ratio']:.2f}, aim at most {AIM:.2f}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    return 2 if any(row["verdict"] == "VOID" for row in rows) else 1 if any(row["verdict"] == "MISS" for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"latency: {failure}")
