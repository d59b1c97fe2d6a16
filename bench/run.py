#!/usr/bin/env python3
"""The benchmark suite: what five publications measured, repeated here, for Weir and whatever else is on this machine.

    bench/run.py                                  # everything, at length
    bench/run.py --profile quick --budget 23      # everything, within 23 minutes
    bench/run.py --only api7,kong --target weir,nginx --runs 5 --seconds 10
    bench/run.py --case key-auth                  # only cases with this in their name
    bench/run.py --render bench/results/suite.json  # the page and the table anew, without measuring

Leaves suite.json (everything; docs/benchmarks.md tells its fields), suite.html (a page that needs nothing else) and
suite.md (tables) in --out. Ctrl-C keeps what was measured.
"""
import argparse
import datetime
import json
import pathlib
import shutil
import sys
import time

import programs
from programs import Failure
from suite import markdown, measure, page, plan, preflight, results, scenarios, shape, targets, tools
from suite.shape import Wrong

TOP = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: [one for one in text.split(",") if one]
    parser.add_argument("--profile", choices=scenarios.PROFILES, default="full", help="how many runs of which length (default: %(default)s)")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="make runs shorter when the whole would take longer")
    parser.add_argument("--only", type=listed, default=[], metavar="SCENARIO,…", help="only these scenarios")
    parser.add_argument("--case", type=listed, default=[], metavar="TEXT,…", help="only cases with one of these in scenario/case")
    parser.add_argument("--target", type=listed, default=[], metavar="NAME,…", help="only these targets (default: all that are found)")
    parser.add_argument("--program", action="append", default=[], metavar="NAME=PATH", help="where the program of a target is")
    parser.add_argument("--weir", metavar="PATH", help="the same for weir (default: target/dist/weir)")
    parser.add_argument("--origin", default=TOP / "target/dist/origin", metavar="PATH", help="the origin of the suite (default: %(default)s)")
    parser.add_argument("--runs", type=int, help="runs of each case, instead of the profile's")
    parser.add_argument("--seconds", type=int, help="seconds of each run, instead of the profile's")
    parser.add_argument("--out", type=pathlib.Path, default=TOP / "bench/results", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--gateway-cores", metavar="LIST", help="cores as taskset takes them: 0,1 (default: half of all)")
    parser.add_argument("--load-cores", metavar="LIST", help="cores of the tool")
    parser.add_argument("--origin-cores", metavar="LIST", help="cores of the origin")
    parser.add_argument("--list", action="store_true", help="tell scenarios, cases and targets, and measure nothing")
    parser.add_argument("--render", type=pathlib.Path, metavar="JSON", help="make page and tables from results, and measure nothing")
    parser.add_argument("--update-docs", action="store_true", help="with --render: also put the tables into README.md and docs/performance.md")
    parser.add_argument("--reference", action="store_true", help="print the reference of data files and results for docs/benchmarks.md")
    options = parser.parse_args()
    options.programs = dict(pair.split("=", 1) if "=" in pair else parser.error(f"--program {pair}: expected NAME=PATH") for pair in options.program)
    options.programs.setdefault("weir", options.weir or str(TOP / "target/dist/weir"))
    options.progress, options.say = progress, say
    return options


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}"[:180], end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def say(text):
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def write(folder, figures):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "suite.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / "suite.html").write_text(page.render(figures))
    (folder / "suite.md").write_text(markdown.render(figures))
    print(f"{folder / 'suite.html'}, suite.md and suite.json are written")


def reference():
    return "\n".join([shape.reference(scenarios.SCENARIO, "scenario"), shape.reference(targets.TARGET, "target"), shape.reference(results.FIGURES, "results")])


def listing(planned):
    for scenario, cases in planned.scenarios:
        print(f"{scenario['id']}: {scenario['title']}")
        for case, workers in cases:
            runs, seconds = planned.amount(scenario, case)
            print(f"  {case['id']:28} {case['load']['tool'] or case['load']['kind']:6} {runs} x {seconds} s, {workers} worker{'s' * (workers > 1)}: {case['title']}")
    for name, (target, path) in planned.targets.items():
        print(f"target {name}: {path}")
    for name, why in planned.skipped.items():
        print(f"target {name} is left out: {why}")
    print(f"planned: {plan.said(planned.planned)}")


def main():
    options = arguments()
    if options.reference:
        print(reference())
        return 0
    if options.render:
        figures = shape.checked(json.loads(options.render.read_text()), results.FIGURES, options.render.name)
        write(options.out, figures)
        if options.update_docs:
            markdown.update(TOP, figures)
        return 0
    chosen, known = scenarios.read_all(options.only), targets.read_all()
    cores = preflight.split(*preflight.cores())
    cores = (options.gateway_cores or cores[0], options.load_cores or cores[1], options.origin_cores or cores[2])
    planned = plan.Plan(chosen, known, options.profile, cores[0].count(",") + 1, programs=options.programs, only=options.target, cases=options.case,
                        runs=options.runs, seconds=options.seconds, budget=options.budget)
    if options.list:
        listing(planned)
        return 0
    for tool in ("taskset", "setpriv", "openssl", "nginx"):
        if not shutil.which(tool, path=targets.PATH):
            raise Failure(f"{tool} is missing: run tools/install-test-deps")
    if not shutil.which(options.origin):
        raise Failure(f"{options.origin} is not there: cargo build --profile dist -p weir-bench")
    try:
        options.out.mkdir(parents=True, exist_ok=True)  # fails before hours of measuring, not after
    except OSError as fault:
        raise Failure(f"--out {options.out}: {fault.strerror}") from None
    machine = programs.machine()
    most = max(case["load"]["connections"] for _, cases in planned.scenarios for case, _ in cases)
    checks = preflight.findings(machine, most)
    for row in checks:
        if row["verdict"] != "ok":
            say(f"{row['verdict']}: {row['check']}: {row['found']}. {row['advice']}")
    for name, why in planned.skipped.items():
        say(f"{name} is left out: {why}")
    began, times, started = time.monotonic(), programs.processor_times(), datetime.datetime.now(datetime.timezone.utc)
    say(f"{len(planned.targets)} targets, {sum(len(cases) for _, cases in planned.scenarios)} cases: {plan.said(planned.planned)} planned")
    versions = {name: targets.version(target, path) for name, (target, path) in planned.targets.items()}
    versions |= {tool: tools.version(tool) for tool in tools.NAMES if tools.find(tool)}
    interrupted = False
    with programs.Programs() as run:
        suite = measure.Suite(run, planned, options, cores)
        try:
            suite.measure()
        except KeyboardInterrupt:
            interrupted = True
            say("interrupted: what was measured is kept")
    results.relate(suite.done)
    machine["steal"] = programs.shares(times, programs.processor_times())[1]
    figures = {
        "version": results.VERSION, "profile": options.profile, "started": started.strftime("%Y-%m-%d %H:%M UTC"), "took_s": time.monotonic() - began,
        "planned_s": planned.planned, "interrupted": interrupted, "machine": machine, "cores": dict(zip(("gateway", "load", "origin"), cores)),
        "preflight": checks, "programs": versions, "skipped": planned.skipped, "scenarios": suite.done,
    }
    write(options.out, figures)
    void = [f"{scenario['id']}/{case['id']}: {result['title']}: {result['void']}" for scenario in suite.done for case in scenario["cases"]
            for result in case["results"].values() if result.get("void")]
    for line in void:
        print(f"void: {line}"[:300])
    print(f"took {plan.said(figures['took_s'])} ({plan.said(planned.planned)} planned), {100 * machine['steal']:.1f} % stolen by the host")
    return 130 if interrupted else 2 if void else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, Wrong) as failure:
        sys.exit(f"bench: {failure}")
