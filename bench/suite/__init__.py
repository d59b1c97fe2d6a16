"""The benchmark suite: scenarios and targets are data, load comes from well-known tools, results are one JSON and one page."""
