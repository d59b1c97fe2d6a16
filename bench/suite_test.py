#!/usr/bin/env python3
"""The suite: its data files, what it makes of runs, what it reads from each tool, and one tiny case with each tool
against the real programs.

    bench/suite_test.py                        # all; BENCH_BIN=target/release for the programs (default: target/debug)
"""
import contextlib
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import gate
import programs
import run
from suite import markdown, measure, page, plan, plots, preflight, results, scenarios, shape, targets, template, tools
from suite.shape import Wrong

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ.get("BENCH_BIN", HERE.parent / "target/debug")).resolve()
STORED = json.loads((HERE / "testdata/results.json").read_text())


class DataFiles(unittest.TestCase):
    def test_all_scenarios_are_there_and_every_case_has_its_traffic(self):
        read = {one["id"]: one for one in scenarios.read_all()}
        self.assertEqual(set(read), {"api7", "kong", "tyk", "3scale", "apisix-2cpu", "scale"})
        for scenario in read.values():
            for case in scenario["cases"]:
                asked = scenarios.requests(case)
                self.assertTrue(asked and all(path.startswith("/") for path, _ in asked), case["id"])
        self.assertEqual(len(read["api7"]["cases"]), 10)
        published = [case for case in read["kong"]["cases"] if case["published"] and case["load"]["tool"] == "wrk"]
        self.assertEqual((len(published), all(case["tls"] for case in read["kong"]["cases"])), (8, True))

    def test_what_is_wrong_is_told_with_its_place(self):
        good = '''id = "x"\ntitle = "t"\nsource = "s"\nmachine = "m"\nmethod = "m"\nhere = "h"
runs = {quick = 1, full = 1, published = 1, smoke = 1}\nseconds = {quick = 1, full = 1, published = 1, smoke = 1}\n'''
        case = '[[cases]]\nid = "a"\ntitle = "a"\n'
        for text, said in [
            (good + case + "routs = 1\n", "x.toml.cases[0]: unknown field routs; did you mean routes?"),
            (good + case + 'routes = "1"\n', "x.toml.cases[0].routes: expected a whole number, found '1'"),
            (good + case + 'plugins = ["keyauth"]\n', "x.toml.cases[0].plugins[0]: expected one of 'mocking'"),
            (good + case + case, "the id is there more than once"),
            (good + case + 'relative_to = "b"\n', "there is no case b"),
            (good + case + 'load = {kind = "rate"}\n', "load.rate: needed for rate"),
            (good + case + 'distribution = "normal"\n', "normal is defined over 100 routes"),
            (good + case + "runs = {fast = 1}\n", "there is no profile fast"),
            (good.replace('title = "t"\n', "") + case, "x.toml: title is missing"),
            (good.replace("quick = 1, full = 1", "full = 1", 1) + case, "runs and seconds of the profile quick are missing"),
            ("id = ", "x.toml: "),
        ]:
            with self.subTest(said), tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / "x.toml"
                file.write_text(text)
                with self.assertRaises(Wrong) as raised:
                    scenarios.read(file)
                self.assertIn(said, str(raised.exception))

    def test_a_scenario_or_target_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(Wrong, "there is no scenario apy7; there are .*api7"):
            scenarios.read_all(["apy7"])
        with self.assertRaisesRegex(Wrong, "there is no target nginks; there are "):
            plan.Plan(scenarios.read_all(), targets.read_all(), "quick", 1, only=["nginks"])

    def test_the_normal_distribution_is_the_publications(self):
        case = next(case for case in scenarios.read_all(["kong"])[0]["cases"] if case["id"] == "rate-key-100")
        numbers = [int(re.search(r"\d+", path)[0]) for path, _ in scenarios.requests(case)]
        mean = sum(numbers) / len(numbers)
        deviation = (sum((n - mean) ** 2 for n in numbers) / len(numbers)) ** 0.5
        self.assertTrue(49 < mean < 51 and 6 < deviation < 8, (mean, deviation))
        for path, fields in scenarios.requests(case):
            self.assertEqual(fields["apikey"], f"key-of-{int(re.search(r'[0-9]+', path)[0])}")

    def test_every_target_renders_every_case_that_it_can(self):
        known = targets.read_all()
        self.assertEqual(set(known), {"weir", "nginx", "haproxy", "apisix", "kong", "tyk", "envoy", "traefik", "krakend"})
        rendered = 0
        with programs.Programs() as scratch:
            for scenario in scenarios.read_all():
                for case in scenario["cases"]:
                    case = case | {"routes": min(case["routes"], 100), "consumers": min(case["consumers"], 100)}
                    for name, target in known.items():
                        if targets.lacks(target, case):
                            continue
                        values = targets.values_of(case, pathlib.Path("/tmp/x"), name, 1000, 1001, 1, 1002, scratch.certificate())
                        texts = [target["command"], *target["files"].values()]
                        if case["load"]["kind"] == "change":
                            values["r"] = targets.changed_routes(case, "/changed-1/")[50]
                            texts += [target["change"]["url"], target["change"]["body"]]
                        for text in texts:
                            with self.subTest(f"{name} {case['id']}"):
                                made = template.render(text, values)
                                self.assertNotRegex(made, r"\$\{[a-z]|^% ")
                                rendered += 1
                        if name == "krakend":
                            json.loads(template.render(target["files"]["krakend.json"], values))
        self.assertGreater(rendered, 300)


class Templates(unittest.TestCase):
    def test_values_loops_and_conditions(self):
        text = "a ${x}\n% for r in rs\n% if r.on\n- ${r.i}\n% else\n- no\n% end\n% end\n% if not gone\n$y ${x}\n% end\n% if x == 1\none\n% end\n"
        made = template.render(text, {"x": 1, "rs": [{"i": 1, "on": True}, {"i": 2, "on": ""}], "gone": []})
        self.assertEqual(made, "a 1\n- 1\n- no\n$y 1\none\n")

    def test_faults_name_their_line(self):
        for text, said in [("\n${no}", "line 2: there is no no"), ("% for x in y\n", "line 1: no end"), ("% end\n", "line 1: not understood: % end"),
                           ("% if a b\n% end\n", "line 1: not understood: if a b"), ("% while x\n", "line 1: not understood")]:
            with self.subTest(text), self.assertRaises(template.Fault) as raised:
                template.render(text, {"y": [], "a": 1})
            self.assertIn(said, str(raised.exception))


class Tools(unittest.TestCase):
    """Recorded output of each tool."""

    def test_wrk(self):
        told = tools.read_wrk('Running 1s test\n@@{"requests":5000,"us":1000100,"connect":0,"read":1,"write":0,"status":2,"timeout":3,"mean":1.5,"stddev":-nan,'
                              '"max":9,"p50":1,"p75":2,"p90":3,"p95":4,"p99":5}\n')
        self.assertEqual(told["errors"], {"read": 1, "status": 2, "timeout": 3})
        self.assertEqual((told["requests"], told["latency"]["p95"], told["latency"]["stddev"]), (5000, 4, 0))
        with self.assertRaisesRegex(programs.Failure, "wrk told nothing"):
            tools.read_wrk("unable to connect")

    def test_oha(self):
        told = tools.read_oha((HERE / "testdata/oha.json").read_text())
        self.assertEqual(told["errors"], {"status": 1, "timeout": 2, "connect": 3})
        self.assertAlmostEqual(told["latency"]["p99"], 1234.5)
        self.assertEqual(told["requests"], 1001)

    def test_h2load(self):
        output = ("finished in 1.01s, 100.00 req/s, 1MB/s\nrequests: 101 total, 101 started, 100 done, 97 succeeded, 3 failed, 1 errored, 2 timeout\n"
                  "status codes: 97 2xx, 0 3xx, 0 4xx, 0 5xx\n")
        log = "".join(f"1000\t200\t{n}\n" for n in range(1, 101))
        told = tools.read_h2load(output, log)
        self.assertEqual((told["latency"]["p50"], told["latency"]["p99"], told["latency"]["max"], told["requests"]), (51, 100, 100, 97))
        self.assertEqual(told["errors"], {"other": 3, "timeout": 2})

    def test_k6(self):
        metrics = {"http_reqs": {"values": {"count": 100}}, "timeouts": {"values": {"count": 2}}, "requests_at_the_end": {"values": {"count": 30}},
                   "http_req_duration": {"values": {"avg": 1.5, "max": 9, "p(50)": 1, "p(75)": 2, "p(90)": 3, "p(95)": 4, "p(99)": 5}}}
        told = tools.read_k6(json.dumps({"metrics": metrics}), 10, True)
        self.assertEqual((told["requests"], told["errors"], told["latency"]["p99"], told["rps_at_the_end"]), (98, {"timeout": 2}, 5000, 15))


def made_run(turn, cpu, rps=100.0, **more):
    return {"round": turn, "length_s": 1, "void": "", "notes": [], "requests": 100, "rps": rps, "cpu_us": cpu, "latency": {"p50": 10}, "errors": {}} | more


class Reckoning(unittest.TestCase):
    def case(self, **runs):
        into = {"id": "c", "results": {name: results.entry(name, name) | {"runs": made} for name, made in runs.items()}}
        results.close(into, "nginx")
        return into["results"]

    def test_ratios_are_taken_within_a_round(self):
        # The machine is twice as slow in round 2: the ratio is the same.
        found = self.case(weir=[made_run(1, 8.0), made_run(2, 16.0)], nginx=[made_run(1, 10.0), made_run(2, 20.0)])
        self.assertEqual(found["weir"]["ratio"]["cpu_us"], {"to": "nginx", "median": 0.8, "lowest": 0.8, "highest": 0.8})
        self.assertEqual(found["weir"]["summary"]["cpu_us"]["mean"], 12)
        self.assertAlmostEqual(found["weir"]["summary"]["cpu_us"]["stddev"], 5.657, 3)

    def test_one_error_makes_a_result_void_and_takes_it_out_of_ratios(self):
        suite = types.SimpleNamespace()
        judged = measure.Suite.judged(suite, made_run(1, 8.0, errors={"status": 3, "timeout": 1}), {"load": {"rate": 0}}, {})
        self.assertEqual(judged["void"], "3 status errors; 1 timeout errors")
        found = self.case(weir=[judged, made_run(2, 8.0)], nginx=[made_run(1, 10.0), made_run(2, 10.0)])
        self.assertEqual(found["weir"]["void"], "3 status errors; 1 timeout errors")
        self.assertNotIn("ratio", found["weir"])
        self.assertEqual(found["weir"]["summary"]["cpu_us"]["mean"], 8, "void runs are in no mean")

    def test_a_fault_in_the_log_makes_a_result_void(self):
        into = {"id": "c", "results": {"weir": results.entry("weir", "Weir") | {"runs": [made_run(1, 8.0)], "complaints": ["ERROR no"]}}}
        results.close(into, None)
        self.assertEqual(into["results"]["weir"]["void"], "its error log: ERROR no")

    def test_no_answer_is_void_and_a_missed_rate_is_noted(self):
        self.assertEqual(measure.Suite.judged(None, {"requests": 0, "errors": {}}, {"load": {"rate": 0}}, {})["void"], "no request was answered")
        self.assertEqual(measure.Suite.judged(None, made_run(1, 1.0, rps=900), {"load": {"rate": 1000}}, {})["notes"], ["the rate of 1,000 a second was not reached"])
        busy = measure.Suite.judged(None, made_run(1, 1.0, load_busy=0.99, gateway_busy=0.5), {"load": {"rate": 0}}, {})
        self.assertEqual(busy["notes"], ["tool or origin was the bottleneck"])

    def test_what_the_host_stole_too_much_of_does_not_count(self):
        spoilt = {"counts": False, "stolen": 0.5, "again": programs.AGAIN}
        found = self.case(weir=[made_run(1, 8.0), made_run(2, 30.0, void="3 status errors", **spoilt)], nginx=[made_run(1, 10.0), made_run(2, 10.0)])
        self.assertEqual((found["weir"]["void"], found["weir"]["summary"]["cpu_us"]["mean"], found["weir"]["ratio"]["cpu_us"]["highest"]), ("", 8, 0.8))
        found = self.case(weir=[made_run(1, 8.0, **spoilt)], nginx=[made_run(1, 10.0)])
        self.assertIn("stole", found["weir"]["void"])
        self.assertNotIn("ratio", found["weir"])

    def test_a_run_is_measured_again_while_the_host_steals(self):
        class Suite(measure.Suite):
            made = 0

            def closed(self, one, case, seconds):
                self.made += 1
                return made_run(0, 10.0 * self.made)

            def direct_run(self, case, origin):
                return None

            def once(self, *_):
                return {}

            def tell(self, place, entry):
                pass

        case = {"load": {"kind": "closed", "connections": 1, "rate": 0}, "seconds": {}}
        planned = types.SimpleNamespace(amount=lambda *_: (2, 1), seconds_left=lambda seconds: seconds, spent=lambda *_: None, finished=lambda *_: None, left_said=str)
        quiet = types.SimpleNamespace(profile="quick", progress=lambda _: None, say=lambda _: None)
        suite = Suite(None, planned, quiet, ("0", "1", "1"))
        into = {"results": {"weir": results.entry("weir", "Weir")}}
        # Much time is stolen from the first run twice, and none from the second.
        shares = iter([0.5, 0.3, 0.0, 0.01])
        times, one = [], types.SimpleNamespace()

        def core_times():
            times.append(None)
            share = next(shares) if len(times) % 2 == 0 else 0
            return {core: [0, 0, 0, 1000 * (len(times) % 2 == 0) - int(1000 * share), 0, 0, 0, int(1000 * share)] for core in (0, 1)}

        with mock.patch.object(programs.unstolen, "__defaults__", (core_times,)), mock.patch.object(targets, "check", lambda *_, **__: None):
            suite.rounds({}, case, {"weir": one}, None, into, "place", "key")
        runs = into["results"]["weir"]["runs"]
        self.assertEqual([(run["cpu_us"], run["again"], run["counts"]) for run in runs], [(30.0, 2, True), (40.0, 0, True)])

    def test_relative_cost(self):
        base, other = ({"id": name, "workers": 1, "relative_to": "a", "results": self.case(weir=[made_run(1, cpu, rps)]), "published": [{"label": "p", "rps": told}]}
                       for name, cpu, rps, told in (("a", 10.0, 1000.0, 200), ("b", 12.0, 800.0, 150)))
        scenario = {"id": "s", "cases": [base, other]}
        results.relate([scenario])
        self.assertEqual((other["results"]["weir"]["relative"], other["results"]["weir"]["relative_cpu"]), (0.8, 1.2))
        self.assertEqual(results.published_relative(scenario, other, "p"), 0.75)

    def test_the_gate_fails_on_a_loss_over_its_bound(self):
        rows = gate.verdicts({"bare": (0.90, 0, 0), "mocking": (1.0, 0, 0), "new": (1.0, 0, 0)}, {"bare": 0.84, "mocking": 0.92})
        self.assertEqual([(case, passes) for case, *_, passes in rows], [("bare", True), ("mocking", False), ("new", False)])
        self.assertEqual(set(json.loads((HERE / "baseline.json").read_text())), set(gate.CASES))


class Planning(unittest.TestCase):
    def planned(self, profile, **more):
        known = {name: target for name, target in targets.read_all().items() if name in ("weir", "nginx", "haproxy")}
        return plan.Plan(scenarios.read_all(), known, profile, 1, programs={name: sys.executable for name in known}, **more)

    def test_quick_is_planned_within_its_time(self):
        self.assertLess(self.planned("quick").planned, 23 * 60)

    def test_late_runs_become_shorter_but_never_nothing(self):
        late = self.planned("quick", budget=10)
        late.began -= 5 * 60
        self.assertEqual(late.seconds_left(30), int(30 * 5 * 60 / late.planned + 0.5))
        late.began -= 60 * 60
        self.assertEqual(late.seconds_left(30), 1)

    def test_targets_that_are_not_here_are_skipped_with_a_word(self):
        some = plan.Plan(scenarios.read_all(["tyk"]), targets.read_all(), "quick", 1, programs={"weir": "/nowhere/weir", "nginx": sys.executable})
        self.assertEqual(some.skipped["weir"], "/nowhere/weir is not a program")
        self.assertIn("nginx", some.targets)

    def test_cores_are_parted(self):
        for siblings, found in (({0: "0", 1: "1"}, ("0", "1", "1")), ({n: str(n) for n in range(4)}, ("0,1", "2", "3")),
                                ({n: f"{n % 4},{n % 4 + 4}" for n in range(8)}, ("0,4,1,5", "2,6", "3,7")), ({0: "0-1", 1: "0-1"}, ("0", "1", "1"))):
            self.assertEqual(preflight.split(sorted(siblings), siblings), found)
        with self.assertRaisesRegex(programs.Failure, "two cores are needed"):
            preflight.split([0], {0: "0"})


class Pages(unittest.TestCase):
    def test_the_stored_results_have_the_documented_shape(self):
        self.assertEqual(shape.faults(STORED, results.FIGURES, "results"), [])
        broken = json.loads(json.dumps(STORED))
        broken["scenarios"][0]["cases"][0]["results"]["weir"]["runs"][0]["rsp"] = 1
        self.assertRegex(shape.faults(broken, results.FIGURES, "results")[0], r"unknown field rsp; did you mean rps\?")

    def test_the_page_is_whole_and_needs_nothing_else(self):
        text = page.render(shape.filled(STORED, results.FIGURES))
        opened = []

        class Nesting(html.parser.HTMLParser):
            def handle_starttag(self, tag, attrs):
                for name, value in attrs:
                    assert name != "src" and (name != "href" or value.startswith("#")), (tag, value)
                if tag in ("div", "svg", "table", "details", "pre", "ul", "figure"):
                    opened.append(tag)

            def handle_endtag(self, tag):
                if tag in ("div", "svg", "table", "details", "pre", "ul", "figure"):
                    assert opened.pop() == tag, tag
        Nesting().feed(text)
        self.assertEqual(opened, [])
        self.assertNotRegex(text, r"url\(|@import|<script|<link")
        for scenario in STORED["scenarios"]:
            self.assertIn(f'<h2 id="{scenario["id"]}">', text)
        self.assertIn("prefers-color-scheme: dark", text)
        self.assertIn("10,809 req/s", text)  # a published figure beside its case
        self.assertNotIn("nan", re.sub("<[^>]+>", "", text).lower())

    def test_the_tables_hold_the_figures(self):
        text = markdown.render(shape.filled(STORED, results.FIGURES))
        for line in text.splitlines():
            if line.startswith("|"):
                self.assertTrue(line.endswith("|"), line)
        self.assertIn("| HTTPS on both sides, 10 connections |", text)
        for name, mark in markdown.PLACES:
            document = (HERE.parent / name).read_text()
            self.assertEqual([document.count(f"<!-- {slash}{mark} -->") for slash in ("", "/")], [1, 1], name)

    def test_tables_go_between_their_marks(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "docs").mkdir()
            for name, mark in markdown.PLACES:
                (top / name).write_text(f"before\n<!-- {mark} -->\nold\n<!-- /{mark} -->\nafter\n")
            for _ in range(2):
                markdown.update(top, shape.filled(STORED, results.FIGURES))
                for name, mark in markdown.PLACES:
                    text = (top / name).read_text()
                    self.assertRegex(text, rf"(?s)^before\n<!-- {mark} -->\n#.*\n<!-- /{mark} -->\nafter\n$")
                    self.assertNotIn("old", text)

    def test_void_results_are_named_and_in_no_plot(self):
        spoilt = json.loads(json.dumps(STORED))
        case = spoilt["scenarios"][0]["cases"][0]
        case["results"]["weir"]["void"] = "7 read errors"
        text = page.render(shape.filled(spoilt, results.FIGURES))
        self.assertIn("7 read errors", text)
        self.assertNotIn("weir", [name for name, *_ in page.cpu_bars(shape.filled(spoilt, results.FIGURES)["scenarios"][0]["cases"][0])])

    def test_axes_are_round(self):
        self.assertEqual(plots.steps(9), [0, 2, 4, 6, 8, 10])
        self.assertEqual(plots.steps(0), [0, 1])

    def test_numbers_read_well(self):
        self.assertEqual([plots.number(value) for value in (0, 0.001, 0.1234, 9.876, 99.94, 99.96, 999.7, 123456.7)],
                         ["0", "1.0e-03", "0.123", "9.88", "99.9", "100", "1,000", "123,457"])

    def test_the_reference_is_up_to_date(self):
        document = HERE.parent / "docs/benchmarks.md"
        before, _, rest = document.read_text().partition("<!-- reference -->\n")
        held, _, after = rest.partition("<!-- /reference -->")
        if os.environ.get("UPDATE_DOCS"):
            document.write_text(f"{before}<!-- reference -->\n{run.reference()}<!-- /reference -->{after}")
        else:
            self.assertEqual(held, run.reference(), "UPDATE_DOCS=1 bench/suite_test.py Pages.test_the_reference_is_up_to_date")


class RealPrograms(unittest.TestCase):
    """One tiny case with each tool, through nginx and, if it is built, through Weir."""

    def measured(self, *arguments):
        if not (BIN / "origin").exists():
            self.skipTest(f"no {BIN / 'origin'}: cargo build -p weir-bench")
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("two cores are needed")
        with tempfile.TemporaryDirectory() as folder:
            weir = ["--weir", BIN / "weir"] if (BIN / "weir").exists() else []
            command = [HERE / "run.py", "--profile", "smoke", "--origin", BIN / "origin", "--out", folder, *weir, *arguments]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
            file = pathlib.Path(folder) / "suite.json"
            self.assertTrue(file.exists(), done.stdout[-2000:] + done.stderr[-2000:])
            figures = json.loads(file.read_text())
            self.assertEqual(shape.faults(figures, results.FIGURES, "results"), [])
            self.assertIn("<svg", (pathlib.Path(folder) / "suite.html").read_text())
            return figures

    def check(self, place, tool, count=1, **load):
        if not tools.find(tool):
            self.skipTest(f"{tool} is not here: {tools.HOW[tool]}")
        figures = self.measured("--case", place, "--target", "weir,nginx" if (BIN / "weir").exists() else "nginx")
        cases = [case for scenario in figures["scenarios"] for case in scenario["cases"]]
        self.assertEqual(len(cases), count)
        for case in cases:
            result = case["results"]["nginx"]
            self.assertEqual((result["left_out"], result["void"], result["errors"]), ("", "", {}), result["runs"])
            self.assertGreater(result["summary"]["rps"]["mean"], 0)
            self.assertGreater(result["summary"]["cpu_us"]["mean"], 0)
            self.assertGreater(result["summary"]["latency.p99"]["mean"], 0)
        return cases

    def test_wrk(self):
        cases = self.check("api7/key-auth-limit-count-100", "wrk")
        self.assertIn("limit_req", cases[0]["results"]["nginx"]["configuration"])

    def test_wrk_over_tls_on_both_sides(self):
        self.check("apisix-2cpu/ten", "wrk")

    def test_oha(self):
        cases = self.check("3scale/constant", "oha")
        self.assertIn("direct", cases[0]["results"])

    def test_h2load(self):
        cases = self.check("scale/http2", "h2load")
        self.assertFalse(cases[0]["results"].get("weir", {}).get("left_out"), "Weir speaks HTTP/2")

    def test_k6(self):
        self.check("kong/rate-key-k6", "k6")

    def test_an_interruption_keeps_what_was_measured(self):
        if not (BIN / "origin").exists() or len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs the origin and two cores")
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([HERE / "run.py", "--profile", "smoke", "--origin", BIN / "origin", "--out", folder, "--target", "nginx", "--only", "api7", "--runs", "50"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            with contextlib.closing(process.stderr):
                next(line for line in process.stderr if "run 2 of" in line)
                process.send_signal(2)
                process.stderr.read()
            self.assertEqual(process.wait(60), 130)
            figures = json.loads((pathlib.Path(folder) / "suite.json").read_text())
            self.assertTrue(figures["interrupted"])
            self.assertGreaterEqual(len(figures["scenarios"][0]["cases"][0]["results"]["nginx"]["runs"]), 1)


if __name__ == "__main__":
    unittest.main()
