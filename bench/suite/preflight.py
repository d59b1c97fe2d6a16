"""Checks of the machine before measuring: limits, cores, other load. Findings, each with its remedy."""
import os
import pathlib
import resource

import programs

BURSTABLE = ("t2.", "t3.", "t3a.", "t4g.", "e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small", "Standard_B")


def read(path, default=""):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return default


def cores():
    """(all cores that this process may use, text of the kernel's list of each core's siblings)."""
    mine = sorted(os.sched_getaffinity(0))
    return mine, {core: read(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in mine}


def split(mine, siblings):
    """Cores as (gateway, load, origin), lists that `taskset -c` takes. With two, load and origin share one; with more,
    half are the gateway's, and siblings of one physical core stay on one side."""
    if len(mine) < 2:
        raise programs.Failure("two cores are needed: one for the gateway, one for the load and the origin")
    groups = {}
    for core in mine:
        groups.setdefault(siblings.get(core) or str(core), []).append(core)
    ordered = sum(groups.values(), [])
    half = len(ordered) // 2
    if len(groups) > 1:  # do not split a physical core
        while siblings.get(ordered[half - 1]) and siblings[ordered[half - 1]] == siblings[ordered[half]] and half < len(ordered) - 1:
            half += 1
    gateway, rest = ordered[:half], ordered[half:]
    if len(rest) == 1:
        return text(gateway), text(rest), text(rest)
    tools = len(rest) - max(1, len(rest) // 2)
    return text(gateway), text(rest[:tools]), text(rest[tools:])


def text(some):
    return ",".join(map(str, some))


def raise_open_files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        wanted = max(hard, 200_000)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def findings(machine, most_connections):
    """A list of {check, found, verdict: ok|note|warning, advice}."""
    rows = []

    def row(check, found, good, advice, verdict="warning"):
        rows.append({"check": check, "found": str(found), "verdict": "ok" if good else verdict, "advice": "" if good else advice})

    files = raise_open_files()
    row("open files", f"{files:,}", files >= 3 * most_connections + 2000,
        f"{most_connections:,} connections need three descriptors each in a gateway, which keeps some for upstreams: raise the limit (ulimit -n 200000). Cases are cut to what it allows, and say so")
    low, high = map(int, read("/proc/sys/net/ipv4/ip_local_port_range", "32768 60999").split())
    row("ports for outgoing connections", f"{low} to {high}", high - low > 20_000, "sysctl net.ipv4.ip_local_port_range='10240 65000'")
    backlog = int(read("/proc/sys/net/core/somaxconn", "0"))
    row("somaxconn", backlog, backlog >= 4096, "sysctl net.core.somaxconn=4096, or many connections at once are refused")
    virtual = "hypervisor" in read("/proc/cpuinfo")
    row("processor", f"{machine['model']}, {machine['cores']} cores, {'virtual' if virtual else 'physical'}", not virtual,
        "cores of a virtual machine may be shared with others: ratios within this run count, absolute figures do not compare with other machines", "note")
    kind = " ".join(read(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name", "board_asset_tag"))
    burst = next((name for name in BURSTABLE if name in kind), "")
    row("burstable instance", kind.strip() or "nothing known", not burst, f"{burst} lends speed that ends: take an instance with whole cores")
    smt = read("/sys/devices/system/cpu/smt/active", "0") == "1"
    row("SMT", "on" if smt else "off", not smt, "two threads of a core share it: a worker a core, or siblings on one side as this suite lays them", "note")
    governor = machine["governor"]
    row("frequency governor", governor, governor in ("performance", "unknown"), "cpupower frequency-set -g performance")
    busy = machine["busy_before"]
    row("other load before the start", f"{100 * busy:.0f} % of all cores", busy <= 0.05, "stop what else is running: figures are taken beside it")
    stolen = machine["steal_before"]
    row("stolen by the host", f"{100 * stolen:.1f} %", stolen <= 0.02, "the host gives its cores to others: run again at another time")
    return rows
