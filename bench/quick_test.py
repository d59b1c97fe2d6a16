#!/usr/bin/env python3
"""Arithmetic of quick.py: verdicts and ratios, from invented runs."""
import unittest

import latency
import programs
import quick
import streams
import transfer

PAIR = [("bare", "weir bare", "nginx bare", "plain", 0.88)]


def run(program, turn, cpu, void="", load="plain"):
    return {"program": program, "round": turn, "load": load, "cpu_us": cpu, "user_us": 1, "rps": 1, "p50_us": 1, "p95_us": 1,
            "p99_us": 1, "void": void}


class Verdicts(unittest.TestCase):
    def row(self, runs, broken=()):
        return quick.summarise(PAIR, runs, dict(broken))[0]

    def test_ratio_is_taken_within_a_round(self):
        # The machine is twice as slow in round 2: the ratio is the same.
        row = self.row([run("nginx bare", 1, 10), run("weir bare", 1, 8), run("nginx bare", 2, 20), run("weir bare", 2, 16)])
        self.assertEqual((row["lowest"], row["ratio"], row["highest"], row["verdict"]), (0.8, 0.8, 0.8, "PASS"))

    def test_the_aim_itself_passes_and_more_misses(self):
        for cpu, verdict in ((8.8, "PASS"), (8.81, "MISS")):
            self.assertEqual(self.row([run("nginx bare", 1, 10), run("weir bare", 1, cpu)])["verdict"], verdict)

    def test_an_error_on_either_side_voids(self):
        for a, b in (("3 status errors", ""), ("", "1 read errors")):
            row = self.row([run("nginx bare", 1, 10, a), run("weir bare", 1, 1, b)])
            self.assertEqual(row["verdict"], "VOID")

    def test_a_program_that_did_not_run_voids(self):
        row = self.row([run("nginx bare", 1, 10)], {"weir bare": "did not start"})
        self.assertEqual((row["verdict"], row["reasons"]), ("VOID", ["did not start"]))

    def test_runs_under_another_load_do_not_count(self):
        self.assertEqual(self.row([run("nginx bare", 1, 10, load="one key"), run("weir bare", 1, 8)])["verdict"], "-")


class Streams(unittest.TestCase):
    def figures(self, requests=1000, **errors):
        told = {"requests": requests, "seconds": 2.0, "latency": {"p50": 5, "p95": 6, "p99": 7} if requests else {}, "errors": errors}
        # (user, system, exact), in seconds: ticks give the shares, the exact sum is what counts.
        return streams.figures("weir", told, (1.0, 1.0, 2.0), (1.01, 1.03, 2.05))

    def test_cpu_is_that_of_the_program_per_request(self):
        made = self.figures()
        self.assertAlmostEqual(made["cpu_us"], 50)
        self.assertAlmostEqual(made["user_us"], 12.5)
        self.assertEqual((made["rps"], made["p50_us"], made["p95_us"], made["p99_us"], made["void"]), (500, 5, 6, 7, ""))

    def test_an_error_or_no_request_voids(self):
        self.assertEqual(self.figures(status=3, timeout=1)["void"], "3 status errors, 1 timeout errors")
        self.assertEqual(self.figures(0)["void"], "no request was answered")

    def test_a_message_says_its_length(self):
        for message in (programs.REQUEST_MESSAGE, programs.RESPONSE_MESSAGE):
            self.assertEqual((message[0], int.from_bytes(message[1:5], "big")), (0, len(message) - 5))


class Transfers(unittest.TestCase):
    def figures(self, count, took):
        return transfer.figures("weir", (count, took), 2, (1.0, 1.0, 2.0), (1.01, 1.03, 2.05))

    def test_cpu_is_that_of_the_program_per_mib(self):
        made = self.figures(1000 << 20, 2.0)
        self.assertAlmostEqual(made["cpu_us"], 50)
        self.assertAlmostEqual(made["user_us"], 12.5)
        self.assertEqual((made["rps"], made["void"]), (500, ""))

    def test_a_stream_that_ends_early_voids(self):
        self.assertEqual(self.figures(5, 0.1)["void"], "the stream ended after 5 bytes")


class Latencies(unittest.TestCase):
    def row(self, *pairs):
        told = lambda p50, p99, **errors: {"latency": {"p50": p50, "p99": p99}, "errors": errors}
        return latency.summarise("c", 10, [(told(*subject), told(*reference)) for subject, reference in pairs])

    def test_both_percentiles_have_to_reach_the_aim(self):
        self.assertEqual(self.row(((5, 50), (10, 50)))["verdict"], "PASS")
        self.assertEqual(self.row(((5, 51), (10, 50)))["verdict"], "MISS")
        # Within each round: the machine is slower in the second one.
        row = self.row(((5, 50), (10, 50)), ((10, 100), (20, 100)), ((5, 50), (10, 50)))
        self.assertEqual((row["p50"]["ratio"], row["p99"]["ratio"], row["verdict"]), (0.5, 1.0, "PASS"))

    def test_errors_void(self):
        pair = ({"latency": {}, "errors": {"timeout": 1}}, {"latency": {}, "errors": {}})
        self.assertEqual(latency.summarise("c", 10, [pair])["reasons"], ["timeout"])
        self.assertEqual(latency.summarise("c", 10, [])["verdict"], "VOID")

    def test_its_programs_are_those_of_the_table(self):
        known = {name for _, subject, reference, load, _ in quick.PAIRS for name in (subject, reference, load)}
        for _, subject, reference, load, *_ in latency.CASES:
            self.assertLessEqual({subject, reference, load}, known)


def stat(*cores):
    """A reading of /proc/stat: (idle, stolen) of each core."""
    return programs.core_times("cpu  1 2 3\n" + "".join(f"cpu{core} 0 0 0 {idle} 0 0 0 {steal} 0 0\n" for core, (idle, steal) in enumerate(cores)) + "intr 5\n")


class Stolen(unittest.TestCase):
    def readings(self, *shares):
        """Times before and after each attempt, with this share stolen of one core."""
        found = []
        for core, share in shares:
            after = [(100, 0)] * 4
            after[core] = (round(100 * (1 - share)), round(100 * share))
            found += [stat(*[(0, 0)] * 4), stat(*after)]
        return iter(found).__next__

    def test_a_round_is_measured_again_while_the_host_steals(self):
        # (core, share) of each attempt; the number of attempts, and true if the last one counts. The gateway has core 0, wrk core 1.
        cases = [
            ([(0, 0.0)], 1, True),
            ([(0, 0.05)], 1, True),
            ([(0, 0.06), (0, 0.0)], 2, True),
            ([(1, 0.5), (0, 0.2), (1, 0.01)], 3, True),
            ([(2, 0.9)], 1, True),
            ([(0, 0.5)] * 4, 4, False),
        ]
        for attempts, made, counts in cases:
            done = []
            measured = quick.counted(lambda: done.append(1) or [run("weir bare", 1, 10 * len(done))], self.readings(*attempts))
            self.assertEqual((len(done), measured[0]["counts"], measured[0]["again"]), (made, counts, made - 1), attempts)
            self.assertEqual(measured[0]["cpu_us"], 10 * made, "figures of the last attempt alone")
            self.assertEqual(quick.repeats(measured), (made - 1, int(not counts)))

    def test_what_does_not_count_is_in_no_figure(self):
        clean = [run("nginx bare", 1, 10), run("weir bare", 1, 8)]
        spoilt = [one | {"counts": False} for one in (run("nginx bare", 2, 10), run("weir bare", 2, 30, "3 status errors"))]
        row = quick.summarise(PAIR, clean + spoilt, {})[0]
        self.assertEqual((row["ratio"], row["highest"], row["subject"]["cpu_us"], row["verdict"]), (0.8, 0.8, 8, "PASS"))
        row = quick.summarise(PAIR, spoilt, {})[0]
        self.assertEqual((row["verdict"], "stole" in row["reasons"][0]), ("VOID", True))

    def test_cores_are_those_of_the_programs(self):
        self.assertEqual(programs.cores_of("0,2-4", 7), {0, 2, 3, 4, 7})


class Configurations(unittest.TestCase):
    def test_every_program_and_load_of_the_table_exists(self):
        known = quick.configs(1) | quick.kong_configs(1) | quick.tyk_configs(1)
        for case, subject, reference, load, _ in quick.PAIRS:
            self.assertIn(load, quick.requests(), case)
            for program in (subject, reference):
                self.assertTrue(program in known or program in ("nginx bare", "nginx return", "nginx http2", "nginx grpc", "relay") or program.startswith(("nginx https", "nginx tcp")), program)

    def test_requests_of_h2load_differ_in_nothing_but_their_paths(self):
        for name, walk in quick.STREAMS.items():
            self.assertEqual({tuple(headers.items()) for _, headers in walk}, {tuple(walk[0][1].items())}, name)

    def test_each_request_has_its_route_and_its_consumer(self):
        known, requests = quick.configs(1), quick.requests()
        keys = {c["plugins"]["key-auth"]["key"] for c in known["weir key-auth + limit-count"]["consumers"]}
        prefixes = {route["uri"].rstrip("*") for route in known["weir key-auth + limit-count"]["routes"]}
        self.assertEqual({headers["apikey"] for _, headers in requests["100 keys"]}, keys)
        self.assertEqual({path.rsplit("/", 1)[0] + "/" for path, _ in requests["100 keys"]}, prefixes)
        known_by_path = known["weir https http2 key-auth + limit-count"]
        self.assertEqual((known_by_path["routes"], known_by_path["consumers"]), (known["weir key-auth + limit-count"]["routes"], known["weir key-auth + limit-count"]["consumers"]))
        in_paths = [path.split("?apikey=") for path, _ in requests["100 keys in streams"]]
        self.assertEqual([(path, headers["apikey"]) for path, headers in requests["100 keys"]], [tuple(pair) for pair in in_paths])
        self.assertLessEqual({path for path, _ in requests["many paths"]}, {route["uri"] for route in known["weir 100,000 routes"]["routes"]})


if __name__ == "__main__":
    unittest.main()
