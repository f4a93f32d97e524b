#!/usr/bin/env python3
"""CPU of a poll beside nginx returning a constant, in one run.

    cargo build --release && benches/poll.py

Starts `trove serve` with a new embedded store and a hunt of 300 treasures, signs tokens for 10,000 players, and lets
wrk poll it and nginx in turn from another core, round after round. Prints microseconds of CPU (user + system, from
/proc/PID/stat) a request, and the ratio; one absolute figure proves nothing. Needs nginx and wrk from Debian.
"""
import argparse
import json
import os
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
TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")

LUA = """
local tokens, requests, n = {}, {}, 0
for line in io.lines(os.getenv("TOKENS")) do tokens[#tokens + 1] = line end
init = function()
  for i = 1, #tokens do requests[i] = wrk.format("GET", wrk.path, { Authorization = "Bearer " .. tokens[i] }) end
end
request = function()
  n = n + 7919
  return requests[n % #requests + 1]
end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d\\n", summary.requests, latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
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


def ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def start_trove(folder, started):
    port, ops = free_port(), free_port()
    store = folder / "store"
    log = open(folder / "trove.log", "wb")
    argv = ["taskset", "-c", "0", TROVE, "serve", "--listen", f"127.0.0.1:{port}", "--ops-listen", f"127.0.0.1:{ops}",
            "--store", f"embedded:{store}"]
    started.append(subprocess.Popen(argv, stdout=log, stderr=log))
    wait_for(port)
    places = json.loads((ROOT / "data/demo_places.json").read_text())
    hunt = {"id": "bench", "name": "Bench", "treasures": [{**place, "coins": 5} for place in places]}
    (folder / "hunt.json").write_text(json.dumps(hunt))
    server = ["--server", f"http://127.0.0.1:{port}", "--store", str(store)]
    for command in (["put", str(folder / "hunt.json")], ["open", "bench"]):
        subprocess.run([TROVE, "hunt", *command, *server], check=True, stdout=subprocess.DEVNULL)
    tokens = subprocess.run([TROVE, "token", "--count", "10000", "--prefix", "p", "--store", str(store)], check=True,
                            capture_output=True, text=True).stdout
    (folder / "tokens").write_text(tokens)
    return started[-1].pid, f"http://127.0.0.1:{port}/treasure/bench"


def start_nginx(folder, started):
    port = free_port()
    temporary = "".join(f" {kind}_temp_path {folder}/{kind};" for kind in
                        ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.err;\n"
        f"events {{ worker_connections 4096; }}\nhttp {{ access_log off; keepalive_requests 1000000000;{temporary}\n"
        f" server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ default_type application/json;\n"
        "  return 200 '{\"balance\":120,\"credited\":0,\"pending\":0,\"next_poll_ms\":1200}'; } } }\n")
    log = open(folder / "nginx.log", "wb")
    started.append(subprocess.Popen(["taskset", "-c", "0", "nginx", "-c", folder / "nginx.conf", "-p", folder],
                                    stdout=log, stderr=log))
    wait_for(port)
    children = subprocess.run(["pgrep", "-P", str(started[-1].pid)], capture_output=True, text=True).stdout.split()
    return int(children[0]), f"http://127.0.0.1:{port}/treasure/bench"


def drive(folder, url, connections, seconds):
    out = subprocess.run(["taskset", "-c", "1", "wrk", "-t1", f"-c{connections}", f"-d{seconds}s",
                          "-s", folder / "wrk.lua", url], capture_output=True, text=True,
                         env={**os.environ, "TOKENS": str(folder / "tokens")}).stdout
    line = next((line for line in out.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        sys.exit(f"wrk gave no figures:\n{out}")
    return [int(figure) for figure in line.split()[1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    args = parser.parse_args()
    for program in ("nginx", "wrk", "taskset", "pgrep"):
        if not shutil.which(program):
            sys.exit(f"not installed: {program} (apt-get install nginx wrk)")
    if not TROVE.exists():
        sys.exit("build it first: cargo build --release")
    folder, started = Path(tempfile.mkdtemp(prefix="trove-bench.")), []
    folder.chmod(0o755)
    (folder / "wrk.lua").write_text(LUA)
    try:
        contenders = {"trove": start_trove(folder, started), "nginx constant": start_nginx(folder, started)}
        cost = {name: [] for name in contenders}
        for nth in range(args.rounds + 1):                # the first round warms up and is dropped
            for name, (pid, url) in contenders.items():
                before = ticks(pid)
                requests, p99_us, errors = drive(folder, url, args.connections, args.seconds)
                cpu_us = (ticks(pid) - before) * TICK_US / max(requests, 1)
                if nth:
                    cost[name].append(cpu_us)
                    print(f"{name:<16}{cpu_us:>8.2f} us of CPU a request, p99 {p99_us} us, {errors} errors")
        ratio = statistics.median(a / b for a, b in zip(*cost.values()))
        print(f"median ratio, trove to nginx's constant: {ratio:.2f}")
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
