#!/usr/bin/env python3
"""Runs the case `sla-story` and sets beside each other, fault by fault, what everything that watches said of it.

    cargo build --release -p trove -p soak && soak/sla_story.py --out runs/story

Looks once a second at `/sla` and at the page (`/ops/state`) of the shim and both servers, has a real Prometheus scrape
them with the rules of `trove sla rules`, reads the logs and the run's record when it is over, and prints one text. In the
output directory are left: the run (`run/`, with its report and the servers' logs), every look (`looks.jsonl`), Prometheus's
settings, rules and data (`prometheus/`), and the text (`story.txt`).

Without Prometheus (Debian: prometheus) the rest is told all the same. `--short` takes 75 s and 200 players.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASE = ROOT / "soak" / "cases" / "sla-story.toml"
CAUSES = ("client", "shim", "app", "store")
# What the harness is told for the short form: enough of everything to see that it works.
SHORT = {
    "duration": "75s",
    "warmup": "5s",
    "window": "10s",
    "settle": "5s",
    "load.users": "200",
    "load.arrive_over": "3s",
    "behaviour.find_interval": "3s",
    "faults.0.at": "15s",
    "faults.1.at": "35s",
    "faults.2.at": "58s",
}
# How long after a fault's end what it caused may still be told: a request that waited, an alert that is evaluated.
AFTER_S = 12
# How long the system may take to be there, and a process to end.
PATIENCE_S = 120
LOOK_S = 1.0


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=pathlib.Path, help="a directory to be made")
    parser.add_argument("--soak", type=pathlib.Path, default=ROOT / "target/release/soak")
    parser.add_argument("--trove", type=pathlib.Path, help="default: beside soak")
    parser.add_argument("--short", action="store_true", help="75 s and 200 players")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to soak"
    )
    args = parser.parse_args()
    args.trove = args.trove or args.soak.with_name("trove")
    for program in (args.soak, args.trove):
        if not program.is_file():
            parser.error(f"there is no {program}; build it: cargo build --release -p trove -p soak")
    if args.out.exists():
        parser.error(f"{args.out} exists")
    return args


def get(port, path, timeout=2.0):
    """What a listener says, as JSON; None if it says nothing."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as answer:
            return json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return None


class Ended:
    """A process that ends with the block, by its own number."""

    def __init__(self, process):
        self.process = process

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def operations_ports(run, harness):
    """The operations listeners, by process, once all of them answer."""
    state = run / "system" / "state.json"
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if harness.poll() is not None:
            sys.exit(f"soak ended with status {harness.returncode} before the system was there")
        try:
            ports = json.loads(state.read_text())["ports"]
        except (OSError, ValueError, KeyError):
            ports = {}
        found = {
            name.removesuffix("-ops"): port for name, port in ports.items() if name.endswith("-ops")
        }
        wanted = {"shim", "serve-0", "serve-1"}
        if wanted <= found.keys() and all(get(found[name], "/sla") for name in wanted):
            return {name: found[name] for name in sorted(wanted, reverse=True)}
        time.sleep(0.2)
    sys.exit("the system did not come up")


def start_prometheus(out, trove, ports):
    """A Prometheus that scrapes each second, and its port; None where it is not installed."""
    if shutil.which("prometheus") is None:
        return None
    home = out / "prometheus"
    home.mkdir()
    objectives = ",".join(tomllib.loads(CASE.read_text())["system"]["settings"]["sla.objectives"])
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TROVE_")
    }
    environment["TROVE_SLA__OBJECTIVES"] = objectives
    rules = subprocess.run(
        [trove, "sla", "rules"], env=environment, check=True, capture_output=True, text=True
    )
    (home / "rules.yml").write_text(rules.stdout)
    lines = ["global: {scrape_interval: 1s, evaluation_interval: 1s}", "rule_files: [rules.yml]"]
    lines.append("scrape_configs:")
    servers = ", ".join(f"'127.0.0.1:{port}'" for name, port in ports.items() if name != "shim")
    for job, targets in (("shim", f"'127.0.0.1:{ports['shim']}'"), ("serve", servers)):
        lines.append(f"  - job_name: {job}")
        lines.append(f"    static_configs: [{{targets: [{targets}]}}]")
    (home / "prometheus.yml").write_text("\n".join(lines) + "\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (home / "log.txt").open("w")
    process = subprocess.Popen(
        [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        cwd=home,
        stdout=log,
        stderr=log,
    )
    return process, port


def summary(name, sla, page):
    """What one process said at one look, of what the story is about."""
    firing = []
    objectives = {}
    for objective in sla["objectives"]:
        window = objective["windows"][0]
        objectives[objective["name"]] = {
            key: window[key]
            for key in ("requests", "failed", "late", "errors_burn_rate", "latency_burn_rate")
        }
        for alert in objective["alerts"]:
            if alert["firing"]:
                firing.append(f"{objective['name']}/{alert['budget']}/{alert['severity']}")
    return {
        "process": name,
        "state": sla["state"],
        "slow": sla["slow"]["since_start"],
        "objectives": objectives,
        "firing": sorted(set(firing)),
        "page": page and {
            "state": page["sla"]["state"],
            "slow": page["sla"]["slow"]["since_start"],
            "moment": page.get("moment"),
            "store": (page.get("store") or {}).get("health"),
        },
    }


def watch(ports, prometheus_port, looks, stop, path):
    """Looks at everything once a second until told to stop."""
    with path.open("w") as out:
        while not stop.is_set():
            began = time.monotonic()
            look = {"wall_ms": time.time() * 1000, "processes": [], "alerts": None}
            for name, port in ports.items():
                sla, page = get(port, "/sla"), get(port, "/ops/state")
                if sla:
                    look["processes"].append(summary(name, sla, page))
            if prometheus_port:
                answer = get(prometheus_port, "/api/v1/alerts")
                look["alerts"] = [
                    alert for alert in (answer or {}).get("data", {}).get("alerts", [])
                    if alert["state"] == "firing"
                ]
            looks.append(look)
            out.write(json.dumps(look) + "\n")
            stop.wait(max(0.0, LOOK_S - (time.monotonic() - began)))


def lines_of(path):
    try:
        text = path.read_text()
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


def slow_lines(run, names):
    """The log's lines of slow requests, by process: (milliseconds since the epoch, fields)."""
    found = {}
    for name in names:
        lines = []
        for line in lines_of(run / "system" / "logs" / f"{name}.log"):
            fields = line.get("fields", {})
            if fields.get("message") == "a slow request":
                at = datetime.datetime.fromisoformat(line["timestamp"].replace("Z", "+00:00"))
                lines.append((at.timestamp() * 1000, fields))
        found[name] = lines
    return found


def gained(looks, name, before_ms, until_ms):
    """What a process counted as slow between two moments, by cause; a process that began anew counts from 0."""
    gain = collections.Counter()
    last = None
    for look in looks:
        if look["wall_ms"] > until_ms:
            break
        now = next((one["slow"] for one in look["processes"] if one["process"] == name), None)
        if now is None:
            continue
        if last is not None and look["wall_ms"] >= before_ms:
            anew = any(now[cause] < last[cause] for cause in CAUSES)
            for cause in CAUSES:
                gain[cause] += now[cause] - (0 if anew else last[cause])
        last = now
    return gain


def causes(counts):
    told = [f"{cause} {counts[cause]}" for cause in CAUSES if counts[cause]]
    return ", ".join(told) or "none"


def alert_name(alert):
    labels = alert["labels"]
    budget = "latency" if "Latency" in labels["alertname"] else "errors"
    return f"{labels.get('objective', '')}/{budget}/{labels.get('severity', '')} at {labels.get('job', '')}"


def told_alerts(now, before):
    """Alerts, those that began apart from those that only went on."""
    began, went_on = sorted(now - before), sorted(now & before)
    parts = [", ".join(began)] if began else []
    if went_on:
        parts.append("still " + ", ".join(went_on))
    return "; ".join(parts) or "none"


def alerts_of(look):
    """What Prometheus said; None if it was not asked."""
    if look["alerts"] is None:
        return None
    return {alert_name(alert) for alert in look["alerts"]}


def failures(run, from_ms, until_ms):
    """What failed for players, by kind, in the record's intervals from one moment of the run to another."""
    failed = collections.Counter()
    for interval in lines_of(run / "intervals.jsonl"):
        if interval["to_ms"] > from_ms and interval["from_ms"] < until_ms:
            for kind, counts in interval["kinds"].items():
                failed[kind] += sum(counts["failed"].values())
    return ", ".join(f"{kind} {count}" for kind, count in failed.items() if count) or "none"


def tell_process(out, name, said, before, counted, lines):
    """What one process said, in three ways. Gives the alerts that began."""
    page = [one["page"] for one in said if one["page"]]
    moments = [one["moment"] for one in page if one["moment"]]
    failed = max((moment["failed"] for moment in moments), default=0)
    p99 = max((moment["latency_s"][2] for moment in moments if moment["latency_s"]), default=0)
    odd = sorted({one["store"] for one in page if one["store"]} - {"up"})
    firing = {alert for one in said for alert in one["firing"]}
    out(f"   {name:<11} /sla   slow requests: {causes(counted)}; alerts: {told_alerts(firing, before)}")
    for objective, window in said[-1]["objectives"].items():
        out(
            f"   {'':<11}        {objective}, last 5 min: {window['failed']} failed and {window['late']} late of"
            f" {window['requests']}; burn {window['errors_burn_rate']:.1f} and {window['latency_burn_rate']:.1f}"
        )
    out(
        f"   {'':<11} page   at worst {failed:.1f} failures/s, p99 of polls {p99 * 1000:.1f} ms"
        + (f"; store: {', '.join(odd)}" if odd else "")
    )
    out(f"   {'':<11} log    lines of slow requests: {causes(lines)} (10 a second at most)")
    return firing - before


def tell_fault(out, nth, mark, until_ms, run, looks, logs, start_ms):
    """Everything about one fault; gives its row of the table."""
    from_ms, end_ms = start_ms + mark["at_ms"], start_ms + mark["until_ms"]

    def at(wall_ms):
        return f"{(wall_ms - start_ms) / 1000:.1f} s"

    target = mark["target"] or "all players"
    out(f"\n{nth}. {mark['what']} of {target}: {at(from_ms)} to {at(end_ms)} ({mark['note']})")
    failed = failures(run, mark["at_ms"], until_ms - start_ms)
    out(f"   players     failed requests: {failed}")
    here = [look for look in looks if from_ms <= look["wall_ms"] <= until_ms]
    earlier = [look for look in looks if look["wall_ms"] < from_ms][-1:]
    by_shim, by_servers, logged = (collections.Counter() for _ in range(3))
    began = set()
    for name in logs:
        said = [one for look in here for one in look["processes"] if one["process"] == name]
        if not said:
            out(f"   {name:<11} said nothing")
            continue
        counted = gained(looks, name, from_ms, until_ms)
        lines = collections.Counter(
            fields["cause"] for when, fields in logs[name] if from_ms <= when <= until_ms
        )
        before = {
            alert for look in earlier for one in look["processes"] if one["process"] == name
            for alert in one["firing"]
        }
        began |= tell_process(out, name, said, before, counted, lines)
        logged += lines
        if name == "shim":
            by_shim += counted
        else:
            by_servers += counted
    asked = [alerts for alerts in map(alerts_of, here) if alerts is not None]
    prometheus = "is not installed"
    if asked:
        before = set().union(*(alerts_of(look) or set() for look in earlier))
        prometheus = told_alerts(set().union(*asked), before)
        first = {}
        for look in here:
            for name in (alerts_of(look) or set()) - before:
                first.setdefault(name, at(look["wall_ms"]))
        out(f"   Prometheus  firing: {prometheus}")
        if first:
            seen = ", ".join(f"{name} at {when}" for name, when in first.items())
            out(f"   {'':<11} first seen: {seen}")
    else:
        out(f"   Prometheus  {prometheus}")
    tell_trace(out, logs, from_ms, until_ms)
    return (
        f"{nth}. {mark['what']}",
        failed,
        causes(by_shim),
        causes(by_servers),
        causes(logged),
        ", ".join(sorted(began)) or "none new",
        prometheus,
    )


def table(out, rows):
    """The same in short, side by side."""
    heads = ("fault", "failed for players", "slow at the shim", "slow at servers", "logged",
             "alerts of /sla that began", "Prometheus fires")
    for row in rows:
        out("")
        for head, cell in zip(heads, row):
            out(f"{head:<26} {cell}")


def tell_trace(out, logs, from_ms, until_ms):
    """One slow request that the shim and a server tell of by the same number."""
    of_servers = {
        fields["trace_id"]: (name, fields)
        for name, lines in logs.items() if name != "shim"
        for when, fields in lines if from_ms <= when <= until_ms and fields.get("trace_id")
    }
    for when, fields in logs["shim"]:
        if from_ms <= when <= until_ms and fields.get("trace_id") in of_servers:
            name, theirs = of_servers[fields["trace_id"]]
            out(f"   one of them {fields['trace_id']}")
            for who, of in (("shim", fields), (name, theirs)):
                parts = ", ".join(f"{cause} {of[f'{cause}_ms']}" for cause in CAUSES)
                out(f"   {'':<11} {who}: {of['route']} {of['status']}, {of['took_ms']} ms ({parts}), blamed on {of['cause']}")
            return


def tell(out, run, looks, ports):
    segments = lines_of(run / "run.jsonl")
    marks = lines_of(run / "faults.jsonl")
    if not segments or not marks:
        out("the run has no record of faults: nothing to tell")
        return
    # By the wall clock: the run's begins with its first segment.
    start_ms = segments[0]["wall_ms"] - segments[0]["at_ms"]
    logs = slow_lines(run, ports)
    first_ms = start_ms + marks[0]["at_ms"]
    out("before")
    for name in logs:
        counted = gained(looks, name, 0, first_ms)
        states = {one["state"] for look in looks if look["wall_ms"] < first_ms
                  for one in look["processes"] if one["process"] == name}
        out(f"   {name:<11} slow requests: {causes(counted)}; /sla said {', '.join(sorted(states)) or 'nothing'}")
    rows = []
    for nth, mark in enumerate(marks):
        until_ms = start_ms + mark["until_ms"] + AFTER_S * 1000
        if nth + 1 < len(marks):
            until_ms = min(until_ms, start_ms + marks[nth + 1]["at_ms"])
        rows.append(tell_fault(out, nth + 1, mark, until_ms, run, looks, logs, start_ms))
    table(out, rows)
    differing = sum(
        1 for look in looks for one in look["processes"]
        if one["page"] and any(one["page"]["slow"][cause] < one["slow"][cause] for cause in CAUSES)
    )
    out(f"\n{len(looks)} looks; in {differing} of them the page, asked second, was behind /sla (it is made once a second)")
    if looks:
        for one in looks[-1]["processes"]:
            out(f"at the end {one['process']}: {one['state']}, slow requests: {causes(collections.Counter(one['slow']))}")


def main():
    args = arguments()
    args.out.mkdir(parents=True)
    run = args.out / "run"
    sets = [f"{key}={value}" for key, value in SHORT.items()] if args.short else []
    sets += args.set + [f"system.trove={args.trove.resolve()}"]
    command = [args.soak, "run", "sla-story", "--out", run]
    command += [word for one in sets for word in ("--set", one)]
    story = []

    def out(line):
        story.append(line)
        print(line, flush=True)

    looks, stop = [], threading.Event()
    with Ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as harness:
        ports = operations_ports(run, harness)
        started = start_prometheus(args.out.resolve(), args.trove.resolve(), ports)
        process, port = started or (None, None)
        watcher = threading.Thread(
            target=watch, args=(ports, port, looks, stop, args.out / "looks.jsonl")
        )
        watcher.start()
        try:
            verdict, _ = harness.communicate()
        finally:
            stop.set()
            watcher.join()
            if process:
                with Ended(process):
                    pass
    tell(out, run, looks, ports)
    out("\nthe harness's own verdict\n" + verdict.strip())
    (args.out / "story.txt").write_text("\n".join(story) + "\n")
    return harness.returncode


if __name__ == "__main__":
    sys.exit(main())
