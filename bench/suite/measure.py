"""Runs scenarios: origins, targets, rounds in which targets take turns, and the validity of each run."""
import contextlib
import http.client
import resource
import shutil
import subprocess
import time

import memory
import programs
from programs import Failure

from . import plan, results, scenarios, targets, tools

WARM_UP = {"quick": 1, "full": 3, "published": 10, "smoke": 1}  # seconds
SATURATED = 0.92  # share of its cores' time above which a program is the bottleneck


class Suite:
    """State shared by all cases. Results are collected in `self.done`, so that they survive an interruption."""

    def __init__(self, run, planned, options, cores):
        self.run, self.plan, self.options = run, planned, options
        self.gateway_cores, self.load_cores, self.origin_cores = cores
        self.workers = self.gateway_cores.count(",") + 1
        self.origins, self.direct, self.done = {}, {}, []

    def measure(self):
        for scenario, cases in self.plan.scenarios:
            out = results.scenario(scenario)
            self.done.append(out)
            if self.workers == 1 and len(scenario["workers"]) > 1:
                out["notes_here"].append("One worker and all workers are the same here: the gateway has one core.")
            for case, workers in cases:
                self.case(scenario, case, workers, out)
            self.verify_direct(out)

    def case(self, scenario, case, workers, out):
        """Measures one case: all its targets are started one after the other, and only the measured one has load."""
        limit = max((resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1500) // 3, 64)
        wanted = case["load"]["connections"]
        case = case | {"load": case["load"] | {"connections": min(wanted, limit)}}
        into = results.case(scenario, case, workers, self.load_said(case))
        out["cases"].append(into)
        if wanted > limit:
            into["notes"].append(f"{limit:,} connections instead of {wanted:,}: the limit of open files here")
        place, key = f"{scenario['id']}/{into['id']}", plan.key(scenario, case, workers)
        if case["load"]["tool"] and not tools.find(case["load"]["tool"]):
            into["notes"].append(f"left out: {case['load']['tool']} is missing ({tools.HOW[case['load']['tool']]} installs it)")
            self.plan.finished(key)
            return
        origin = self.origin(case)
        running = {}
        try:
            self.start_all(case, workers, origin, running, into, place)
            self.rounds(scenario, case, running, origin, into, place, key)
        finally:
            for name, one in running.items():
                if name != "direct":
                    complaints = one.complaints()
                    into["results"][name]["complaints"] = complaints[:20]
                    self.run.stop(one.process)
                    shutil.rmtree(one.folder, ignore_errors=True)
            results.close(into, self.reference(into))

    @staticmethod
    def reference(case):
        return next((name for name in ("nginx", "haproxy", "direct") if name in case["results"] and not case["results"][name]["left_out"]), None)

    def load_said(self, case):
        load = case["load"]
        words = {"closed": f"{load['connections']:,} connections, closed loop", "rate": f"{load['rate']:,} requests a second over {load['connections']} connections",
                 "rush": f"0 to {load['connections']:,} users, a second between requests of each",
                 "highest": f"connections raised until the mean latency passes {load['mean_ms']} ms", "idle": f"{load['connections']:,} idle connections",
                 "reload": f"{load['rate']:,} requests a second over {load['connections']} connections"}
        words = words.get(load["kind"], words["reload"])
        return f"{load['tool'] or 'memory.py'}: {words}" + (", 32 streams each" if load["tool"] == "h2load" else "")

    def origin(self, case):
        """The program behind the gateway for this case; each kind is started once."""
        kind = (case["origin"], case["origin_tls"])
        if kind not in self.origins:
            port = programs.free_port()
            cert, key = self.run.certificate()
            if case["origin"] == "static" and not case["origin_tls"]:
                program = self.run.nginx("origin", programs.NGINX_FIXED.format(port=port, body=scenarios.BODY), port, self.origin_cores)
            elif case["origin"] == "static":
                text = programs.NGINX_FIXED_TLS.format(port=port, body=scenarios.BODY, tls=self.run.nginx_tls())
                program = self.run.nginx("secure-origin", text, port, self.origin_cores, tls=True)
            else:
                tls = ["--cert", cert, "--key", key] if case["origin_tls"] else []
                name = "documents-tls" if case["origin_tls"] else "documents"
                program = self.run.start(name, [self.options.origin, "--listen", f"127.0.0.1:{port}", *tls], port, self.origin_cores, tls=case["origin_tls"])
            self.origins[kind] = program
        return self.origins[kind]

    def start_all(self, case, workers, origin, running, into, place):
        for name in self.plan.targets_of(case):
            target, program = self.plan.targets[name]
            entry = into["results"][name] = results.entry(name, target["title"])
            if why := targets.lacks(target, case):
                entry["left_out"] = why
                continue
            self.progress(f"{place}: starting {target['title']}")
            try:
                one = targets.start(self.run, target, program, case, workers, self.gateway_cores, origin.port)
                if why := targets.check(one.process, case):
                    self.run.stop(one.process)
                    raise Failure(why)
            except (Failure, OSError, http.client.HTTPException) as failure:
                entry["left_out"] = f"not measured: {failure}"
                self.say(f"{place}: {target['title']}: {entry['left_out'][:300]}")
                continue
            running[name] = one
            entry.update(startup_s=one.startup, startup_memory=one.resident, configuration=one.shown)
        if case["direct"]:
            running["direct"] = origin
            into["results"]["direct"] = results.entry("direct", "no gateway")

    def rounds(self, scenario, case, running, origin, into, place, key):
        count, seconds = self.plan.amount(scenario, case)
        kind = case["load"]["kind"]
        step = {"closed": self.closed, "rate": self.closed, "rush": self.closed, "highest": self.highest, "idle": self.idle, "reload": self.reload,
                "change": self.reload}[kind]
        if kind not in ("idle", "reload", "change"):
            into["direct_rps"] = self.direct_run(case, origin)
            warm = case["load"] | {"connections": min(case["load"]["connections"], 1000)}
            for name, one in running.items():
                with contextlib.suppress(Failure):
                    self.once(one, case, WARM_UP[self.options.profile], warm)
        for turn in range(1, count + 1):
            for name, one in running.items():
                entry = into["results"][name]
                if self.options.profile not in case["seconds"]:  # a case's own length has its reason
                    seconds = self.plan.seconds_left(seconds)
                self.progress(f"{place}: run {turn} of {count}, {entry['title']}, {seconds} s")
                began = time.monotonic()
                try:
                    if kind not in ("idle",) and (why := targets.check(program_of(one), case, gateway=name != "direct")):
                        raise Failure(why)
                    # The memory of a connection does not depend on stolen time, and nobody reads the figures of a smoke test.
                    spoils = kind != "idle" and self.options.profile != "smoke"
                    cores = programs.cores_of(self.gateway_cores, self.load_cores, self.origin_cores) if spoils else ()
                    figures, stolen, spoilt = programs.unstolen(lambda: step(one, case, seconds), cores)
                    figures |= {"stolen": stolen, "again": len(spoilt), "counts": stolen <= programs.STOLEN}
                except (Failure, OSError, http.client.HTTPException) as failure:
                    figures = {"void": str(failure)[:400]}
                entry["runs"].append({"round": turn, "length_s": seconds, **self.judged(figures, case, into)})
                self.plan.spent(key, time.monotonic() - began)
                self.tell(place, entry)
        self.plan.finished(key)

    def closed(self, one, case, seconds):
        return self.once(one, case, seconds)

    def once(self, one, case, seconds, load=None):
        """Runs the case's tool against a program: figures of the tool, and resources used by the programs meanwhile."""
        load, program = load or case["load"], program_of(one)
        origin = self.origin(case)
        asked, normal = scenarios.requests(case), None
        if load["tool"] == "k6" and case["distribution"] == "normal":
            asked, normal = scenarios.requests(case | {"distribution": "even"})[:case["routes"]], (50, 7)
        url = f"http{'s' if program.tls else ''}://127.0.0.1:{program.port}/"
        watched = {"gateway": program} | ({"origin": origin} if program is not origin else {})
        before, began = {name: each.cpu() for name, each in watched.items()}, time.monotonic()
        figures = tools.load(load["tool"], url, load, seconds, self.load_cores, self.run.folder, asked, normal)
        took = time.monotonic() - began
        spent = {name: tuple(b - a for a, b in zip(before[name], each.cpu())) for name, each in watched.items()}
        user, system, total = spent["gateway"]
        count, ticks = max(figures["requests"], 1), max(user + system, 1e-9)
        side = 1 if self.load_cores == self.origin_cores else 2
        load_busy = figures["tool_cpu"] / took / (self.load_cores.count(",") + 1)
        origin_busy = spent.get("origin", (0, 0, 0))[2] / took / (self.origin_cores.count(",") + 1)
        if program is origin:  # no gateway: the resources used are the origin's
            origin_busy = total / took / (self.origin_cores.count(",") + 1)
            mine = {}
        else:
            mine = {"cpu_us": 1e6 * total / count, "user_us": 1e6 * total * user / ticks / count, "system_us": 1e6 * total * system / ticks / count,
                    "gateway_busy": total / took / one.values["workers"], "resident": program.resident()}
        return figures | mine | {"load_busy": min(load_busy + origin_busy, 1) if side == 1 else max(load_busy, origin_busy)}

    def highest(self, one, case, seconds):
        """Best run with a mean latency within the bound, found by increasing the connections and halving the steps at the end."""
        bound, tried = case["load"]["mean_ms"] * 1000, {}

        def attempt(connections):
            figures = self.once(one, case, seconds, case["load"] | {"connections": connections})
            tried[connections] = figures
            return not figures["errors"] and figures["latency"]["mean"] <= bound

        low, high, connections = 0, None, 8
        while high is None and connections <= 4096:
            low, high, connections = (connections, high, connections * 2) if attempt(connections) else (low, connections, connections)
        while low and high and high / low > 1.2:
            middle = round((low * high) ** 0.5)
            low, high = (middle, high) if attempt(middle) else (low, middle)
        if not low:
            raise Failure(f"the mean latency of {min(tried)} connections is over {case['load']['mean_ms']} ms already")
        kept = [(figures["rps"], number) for number, figures in tried.items() if not figures["errors"] and figures["latency"]["mean"] <= bound]
        best = max(kept)[1]
        return tried[best] | {"connections": best, "tried": [
            {"connections": number, "rps": figures["rps"], "mean_us": figures["latency"]["mean"]} for number, figures in sorted(tried.items())]}

    def idle(self, one, case, seconds):
        """Growth of resident memory from a tenth of the connections to all of them, each after one request."""
        count, opened = case["load"]["connections"], []
        try:
            memory.open_connections(one.process.port, count // 10, opened)
            few = memory.settled(one.process)
            memory.open_connections(one.process.port, count, opened)
            many = memory.settled(one.process)
            if gone := sum(memory.closed(connection) for connection in opened):
                raise Failure(f"{gone} of {count} idle connections were closed meanwhile")
        finally:
            for connection in opened:
                connection.close()
        return {"bytes_a_connection": (many - few) / (count - count // 10), "resident": many, "requests": count, "errors": {}}

    def reload(self, one, case, seconds):
        """Changes one route during a constant rate: time until the change serves, and its effect on other requests."""
        before = self.once(one, case, seconds)
        load, program = case["load"], one.process
        url = f"http{'s' if program.tls else ''}://127.0.0.1:{program.port}/"
        # The changed route is not among those that the load requests.
        asked = [each for each in scenarios.requests(case) if each[0] != scenarios.routes(case)[case["routes"] // 2]["item"]]
        command = tools.oha(url, load, seconds, 1, self.run.folder, asked)
        start = program.cpu()[2]
        process = subprocess.Popen(["taskset", "-c", self.load_cores, *map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        try:
            time.sleep(seconds / 4)
            live = self.until_live(one)
            output = process.communicate(timeout=seconds + 60)[0]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        figures = tools.read_oha(output)
        late = ["the change took longer than the load that it was to be felt in"] if live > 750 * seconds else []
        return figures | {
            "notes": late, "rps": figures["requests"] / figures["seconds"], "live_ms": live, "p99_before_us": before["latency"].get("p99"), "resident": program.resident(),
            "cpu_us": 1e6 * (program.cpu()[2] - start) / max(figures["requests"], 1),
        }

    def until_live(self, one):
        """Milliseconds from the appearance of the changed file, or from the start of the API request, until the change
        serves."""
        path, written = one.change()
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if targets.get(one.process, path, {}, timeout=5)[0] == 200:
                    return 1000 * (time.monotonic() - written)
            if time.monotonic() > written + 120:
                raise Failure("the changed route was not served within two minutes")
            time.sleep(0.002)

    def judged(self, figures, case, into):
        """Figures with the reasons that make them invalid or less reliable."""
        void = [figures["void"]] if figures.get("void") else [f"{count:,} {kind} errors" for kind, count in figures.get("errors", {}).items()]
        if not void and not figures.get("requests"):
            void = ["no request was answered"]
        notes = list(figures.get("notes", []))
        rate = case["load"]["rate"]
        if rate and figures.get("rps") and figures["rps"] < 0.98 * rate:
            notes.append(f"the rate of {rate:,} a second was not reached")
        if figures.get("load_busy", 0) >= SATURATED and figures.get("gateway_busy", 1) < SATURATED:
            notes.append("tool or origin was the bottleneck")
        return figures | {"void": "; ".join(void), "notes": notes}

    def direct_run(self, case, origin):
        """Requests per second of the same load without a gateway: the capacity of tool and origin together. Measured once
        for each kind of load, and again at the end of the scenario."""
        load = case["load"]
        if load["kind"] not in ("closed", "highest") or load["tool"] != "wrk" or "mocking" in case["plugins"]:
            return None
        key = (case["origin"], case["origin_tls"], case["path"] if case["origin"] == "documents" else "", load["connections"], load["threads"])
        if key not in self.direct:
            self.direct[key] = self.bare(case, origin), case
        return self.direct[key][0]

    def bare(self, case, origin):
        with contextlib.suppress(Failure):
            plain = case | {"plugins": [], "tls": case["origin_tls"], "routes": 1}
            figures = self.once(origin, plain, 1)
            return figures["rps"] if not figures["errors"] else None
        return None

    def verify_direct(self, out):
        """Repeats the direct runs: a large difference means that the machine changed during the scenario."""
        changed = []
        for rps, case in self.direct.values():
            self.progress(f"{out['id']}: tool and origin once more, without a gateway")
            after = self.bare(case, self.origin(case))
            out["direct"].append({"load": f"{case['load']['tool']}, {case['load']['connections']} connections, origin {case['origin']} {case['path']}",
                                  "before_rps": rps, "after_rps": after})
            if rps and after and abs(after / rps - 1) > 0.25:
                changed.append(f"{rps:,.0f} before and {after:,.0f} after ({case['load']['connections']:,} connections, {case['path']})")
        if changed:
            out["warnings"].append(f"the machine was not the same throughout: requests a second without a gateway were {'; '.join(changed[:2])}"
                                   + (f"; {len(changed) - 2} more loads changed like that" if len(changed) > 2 else ""))
        self.direct.clear()

    def tell(self, place, entry):
        last = entry["runs"][-1]
        if last["void"]:
            self.say(f"{place}: {entry['title']}: VOID, {last['void'][:200]}")
        if last.get("again"):
            said = "counts" if results.counts(last) else "does not count"
            self.say(f"{place}: {entry['title']}: measured {last['again']} times more for stolen time, and {said}")

    def progress(self, text):
        self.options.progress(f"[{self.plan.left_said()}] {text}")

    def say(self, text):
        self.options.say(text)


def program_of(one):
    return one.process if isinstance(one, targets.Running) else one
