"""Plan of the runs: their order and duration, the time left, and shorter runs when time is short."""
import time

from . import targets
from .shape import Wrong

STARTS, OVERHEAD = 0.3, 0.15  # seconds for a target's start and for a run, beside the measuring


class Plan:
    def __init__(self, scenarios, known, profile, workers, *, programs=None, only=(), cases=(), runs=None, seconds=None, budget=None):
        """`known` are the targets by name, `programs` paths given by the user, `only` the wanted targets, `cases` texts of
        which one has to occur in the name of a case, `budget` the maximum duration of the whole in minutes."""
        if unknown := [name for name in only if name not in known]:
            raise Wrong(f"there is no target {', '.join(unknown)}; there are {', '.join(known)}")
        self.profile, self.runs, self.seconds, self.budget = profile, runs, seconds, budget and budget * 60
        self.targets, self.skipped = {}, {}
        # nginx and HAProxy directly after Weir, so that compared programs are measured close to each other.
        first = [name for name in ("weir", "nginx", "haproxy") if name in known]
        for name in [*first, *(name for name in known if name not in first)]:
            if only and name not in only:
                continue
            path, why = targets.find(known[name], (programs or {}).get(name))
            if path:
                self.targets[name] = (known[name], path)
            else:
                self.skipped[name] = why
        self.scenarios, self.estimates = [], {}
        for scenario in scenarios:
            chosen = []
            for case in scenario["cases"]:
                if profile in case["not_in"]:
                    continue
                counts = [case["workers"]] if case["workers"] else scenario["workers"]
                for count in dict.fromkeys(workers if one == "all" else min(one, workers) for one in counts):
                    place = f"{scenario['id']}/{case['id']}"
                    if not cases or any(text in place for text in cases):
                        chosen.append((case, count))
                        self.estimates[key(scenario, case, count)] = self.estimate(scenario, case)
            if chosen:
                self.scenarios.append((scenario, chosen))
        if not self.scenarios:
            raise Wrong("no case is left to run")
        self.began = time.monotonic()
        self.planned = sum(self.estimates.values())

    def targets_of(self, case):
        return [name for name in self.targets if not case["targets"] or name in case["targets"]]

    def amount(self, scenario, case):
        """(number of runs, seconds of each) in this profile."""
        runs = self.runs or case["runs"].get(self.profile) or scenario["runs"][self.profile]
        return runs, self.seconds or case["seconds"].get(self.profile) or scenario["seconds"][self.profile]

    def estimate(self, scenario, case):
        runs, seconds = self.amount(scenario, case)
        kind = case["load"]["kind"]
        one = {"idle": 9, "reload": 2 * seconds + 4, "change": 2 * seconds + 4, "highest": 11 * (seconds + OVERHEAD), "rush": seconds + 5}.get(kind, seconds + OVERHEAD)
        many = (case["routes"] // 100_000) * 3 + case["consumers"] // 100_000 * 3
        able = [name for name in self.targets_of(case) if not targets.lacks(self.targets[name][0], case)]
        return (len(able) + case["direct"]) * (STARTS + many + runs * one + (1 + OVERHEAD if kind in ("closed", "rate", "rush") else 0)) + 1

    def remaining(self):
        return sum(self.estimates.values())

    def seconds_left(self, seconds):
        """Seconds for the next run: fewer when the budget would not hold the rest."""
        if not self.budget:
            return seconds
        left = self.budget - (time.monotonic() - self.began)
        return max(1, min(seconds, int(seconds * left / max(self.remaining(), 1) + 0.5)))

    def spent(self, place, seconds):
        """Subtracts used time from the estimate of a case (its `key`)."""
        self.estimates[place] = max(self.estimates[place] - seconds, 0)

    def finished(self, place):
        """Drops the rest of the estimate."""
        self.estimates[place] = 0

    def left_said(self):
        return said(self.remaining()) + " left"


def key(scenario, case, workers):
    return scenario["id"], case["id"], workers


def said(seconds):
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
