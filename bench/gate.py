#!/usr/bin/env python3
"""Fails when a request has become more expensive: CPU per request as a ratio to nginx, against the committed baseline.

A ratio within a round is steady where absolute figures are not. Still a shared machine can spoil a round, so the median
over the rounds is taken, and what is over the bound is measured again with twice the rounds: noise goes, a loss stays.
Rounds of which the host has stolen more than 5 % do not count, as in quick.py; a case without any that counts is a failure.

    bench/gate.py --weir target/dist/weir             # against bench/baseline.json
    bench/gate.py --weir target/dist/weir --update    # a new baseline, on a quiet machine
"""
import argparse
import json
import pathlib
import sys
import types

import programs
import quick
from programs import Failure

HERE = pathlib.Path(__file__).resolve().parent
CASES = ("bare", "key-auth + limit-count, 100/100", "mocking", "HTTPS to HTTP")
BOUND = 1.08  # maximum of a ratio relative to the baseline's


def measure(names, options, rounds):
    """Maps each case to (median ratio, lowest, highest); a void case is a Failure."""
    pairs = [pair for pair in quick.PAIRS if pair[0] in names]
    settings = types.SimpleNamespace(weir=options.weir, relay=None, rounds=rounds, seconds=options.seconds, target_only=None)
    runs, broken = [], {}
    with programs.Programs() as run:
        quick.measure(run, pairs, settings, runs, broken)
    quick.progress("")
    again, lost = quick.repeats(runs)
    if again:
        print(f"{again} rounds were measured again since the host stole more than {100 * programs.STOLEN:.0f} %; {lost} do not count")
    found = {}
    for row in quick.summarise(pairs, runs, broken):
        if row["verdict"] == "VOID":
            raise Failure(f"{row['case']} is void: {'; '.join(row['reasons'])}")
        found[row["case"]] = (row["ratio"], row["lowest"], row["highest"])
    return found


def verdicts(found, baseline):
    """Lists (case, ratio, baseline, ratio of both, passes) for each case; a case without a baseline fails."""
    rows = []
    for case, (ratio, *_) in found.items():
        base = baseline.get(case)
        rows.append((case, ratio, base, ratio / base if base else None, bool(base) and ratio <= base * BOUND))
    return rows


def tell(rows):
    for case, ratio, base, change, passes in rows:
        against = f"baseline {base:.3f}, {100 * (change - 1):+.1f} %" if base else "no baseline: run with --update on a quiet machine"
        print(f"{'ok  ' if passes else 'LOSS'}  {case}: {ratio:.3f} of nginx, {against}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=HERE.parent / "target/dist/weir", metavar="PATH", help="default: %(default)s")
    parser.add_argument("--baseline", type=pathlib.Path, default=HERE / "baseline.json", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--seconds", type=int, default=1, help="length of one run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each case (default: %(default)s)")
    parser.add_argument("--update", action="store_true", help="write what is measured as the baseline")
    options = parser.parse_args()
    if options.update:
        found = measure(CASES, options, 2 * options.rounds + 1)
        options.baseline.write_text(json.dumps({case: round(ratio, 4) for case, (ratio, *_) in found.items()}, indent=1) + "\n")
        print(f"{options.baseline} is written: {found}")
        return 0
    try:
        baseline = json.loads(options.baseline.read_text())
    except (OSError, ValueError) as fault:
        raise Failure(f"{options.baseline}: {fault}") from None
    rows = verdicts(measure(CASES, options, options.rounds), baseline)
    tell(rows)
    if again := [case for case, *_, passes in rows if not passes]:
        print(f"once more, with {2 * options.rounds} rounds")
        rows = verdicts(measure(again, options, 2 * options.rounds), baseline)
        tell(rows)
    return 0 if all(passes for *_, passes in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"bench-gate: {failure}")
