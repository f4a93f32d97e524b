#!/usr/bin/env python3
"""CPU of the soak harness's generator beside wrk's, in one run, against the same server.

    cargo build --release && cargo build --release -p soak --example drive && benches/generator.py

Starts `trove serve` with a new embedded store on one core and drives polls from the other, round after round, with 64 and
with 10,000 connections: wrk as fast as it gets answers, the generator by its own schedule at three quarters of the rate that
wrk reached (`--share`), with every answer checked. Prints microseconds of CPU (user + system) a request of both, their ratio, and the
generator's memory a user. A round in which the generator was behind its schedule by more than 20 ms is marked. Needs wrk.
"""
import argparse
import json
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TROVE = ROOT / "target/release/trove"
DRIVE = ROOT / "target/release/examples/drive"
USERS = 10_000

LUA = """
local tokens, requests, n = {}, {}, 0
for line in io.lines(os.getenv("TOKENS")) do tokens[#tokens + 1] = line end
init = function()
  for i = 1, #tokens do requests[i] = wrk.format("GET", wrk.path, { Authorization = "Bearer " .. tokens[i] }) end
end
request = function()
  n = n + 1
  return requests[n % #requests + 1]
end
"""

CASE = """
name = "generator"
question = "What does a request cost the generator?"
seed = 1
duration = "{duration_s}s"
settle = "0s"
interval = "1s"
window = "5s"
[load]
users = {users}
arrive_over = "1s"
[behaviour]
poll_interval = "{interval_us}us"
conditional_share = 0.0
heartbeat_interval = "0s"
find_interval = "0s"
history_interval = "0s"
catalogue_interval = "0s"
[bounds]
behind_max = "20ms"
[system]
address = "http://127.0.0.1:1"
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port):
    end = time.time() + 10
    while time.time() < end:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nothing listens on port {port}")


def start_trove(trove, folder, started):
    port, ops, store = free_port(), free_port(), folder / "store"
    log = open(folder / "trove.log", "wb")
    argv = ["taskset", "-c", "0", trove, "serve", "--listen", f"127.0.0.1:{port}", "--ops-listen", f"127.0.0.1:{ops}",
            "--store", f"embedded:{store}"]
    started.append(subprocess.Popen(argv, stdout=log, stderr=log))
    wait_for(port)
    hunt = {"id": "bench", "name": "Bench", "treasures": [{"id": "drop", "name": "Drop", "coins": 5, "repeatable": True}]}
    (folder / "hunt.json").write_text(json.dumps(hunt))
    server = ["--server", f"http://127.0.0.1:{port}", "--store", str(store)]
    for command in (["put", str(folder / "hunt.json")], ["open", "bench"]):
        subprocess.run([trove, "hunt", *command, *server], check=True, stdout=subprocess.DEVNULL)
    tokens = subprocess.run([trove, "token", "--count", str(USERS), "--prefix", "u", "--store", str(store)], check=True,
                            capture_output=True, text=True).stdout
    (folder / "tokens").write_text(tokens)
    return port


def measured(argv, env=None):
    """Runs a program on the generator's core. Its output, its CPU seconds, and the most memory it held in bytes."""
    process = subprocess.Popen(["taskset", "-c", "1", *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, **(env or {})})
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{argv[0]} ended with {process.returncode}: {process.stderr.read()}")
    return out, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def with_wrk(folder, port, connections, seconds):
    out, cpu_s, _ = measured(["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", folder / "wrk.lua",
                              f"http://127.0.0.1:{port}/treasure/bench"], {"TOKENS": str(folder / "tokens")})
    requests = next(int(line.split()[0]) for line in out.splitlines() if " requests in " in line)
    return cpu_s * 1e6 / requests, requests / seconds


def with_generator(folder, port, connections, seconds, rate):
    case = folder / "generator.toml"
    # The shortest window is 5 s, for which the run goes on after the event: all of it counts.
    case.write_text(CASE.format(duration_s=max(seconds - 5, 2), users=connections,
                                interval_us=max(1000, int(connections / rate * 1e6))))
    out, cpu_s, memory = measured([DRIVE, f"127.0.0.1:{port}", "bench", folder / "tokens", case])
    *lines, last = out.splitlines()
    words = last.split()
    sent, answered, findings = int(words[1]), int(words[3]), int(words[7])
    behind_us = max(json.loads(line)["behind_us_max"] for line in lines if '"behind_us_max"' in line)
    if findings:
        sys.exit(f"the checker found something: {lines[0]}")
    return cpu_s * 1e6 / sent, sent, answered, behind_us, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[64, USERS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.75, help="of wrk's rate that the generator drives")
    parser.add_argument("--trove", type=Path, default=TROVE, help="the server to drive")
    args = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("not installed: wrk (apt-get install wrk)")
    for program in (args.trove, DRIVE):
        if not program.exists():
            sys.exit("build it first: cargo build --release && cargo build --release -p soak --example drive")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder, started = Path(tempfile.mkdtemp(prefix="trove-bench.")), []
    (folder / "wrk.lua").write_text(LUA)
    try:
        port = start_trove(args.trove, folder, started)
        for connections in args.connections:
            ratios = []
            for nth in range(args.rounds + 1):              # the first round warms up and is dropped
                wrk_us, rate = with_wrk(folder, port, connections, args.seconds)
                own_us, sent, answered, behind_us, memory = with_generator(folder, port, connections, args.seconds, rate * args.share)
                if nth:
                    ratios.append(own_us / wrk_us)
                    late = f", BEHIND by {behind_us / 1000:.1f} ms" if behind_us > 20_000 else ""
                    print(f"{connections:>6} connections: wrk {wrk_us:5.2f} us at {rate:,.0f}/s, generator {own_us:5.2f} us "
                          f"({sent:,} sent, {answered:,} answered{late}), {memory / connections / 1000:.1f} KB a user")
            print(f"{connections:>6} connections: median ratio, generator to wrk: {statistics.median(ratios):.2f}")
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


main()
