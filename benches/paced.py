#!/usr/bin/env python3
"""CPU and latency of a forwarded poll below saturation: 8,000 polls a second from 9,800 connections, through the shim, nginx
and HAProxy to the same `trove serve`, and directly, in turn.

    cargo build --release -p trove -p soak && benches/paced.py [--users 9800] [--rate 8000] [--rounds 3] [--seconds 15]

Proxies and server share core 0; soak's generator has core 1, sends at each poll's own time, checks every answer and counts
latency from the intended time. CPU is the process's user and system time a poll, from /proc, while all users are there.
Needs nginx and haproxy (Debian). Everything listens on 127.0.0.1 and is ended at the end.
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
TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")
KEYS = {"TROVE_TOKEN_KEY": "a-token-key-of-more-than-32-bytes!", "TROVE_ADMIN_KEY": "an-admin-key-of-16-bytes"}
ARRIVE_S, SETTLE_S = 8, 1
CASE = """
name = "paced"
question = "What does a poll cost that is forwarded below saturation?"
seed = 2
duration = "{lasts}s"
warmup = "{arrive}s"
settle = "{settle}s"
window = "5s"
[load]
users = {users}
arrive_over = "{arrive}s"
tick = "1ms"
[behaviour]
poll_interval = "{interval}ms"
heartbeat_interval = "0s"
find_interval = "0s"
history_interval = "0s"
catalogue_interval = "0s"
[bounds]
behind_max = "100ms"
[system]
address = "http://127.0.0.1:{port}"
[[objectives]]
request = "poll"
error_ratio = 0.0
percentile = 99.0
below = "10s"
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def spawn(folder, name, argv, started):
    env = {key: value for key, value in os.environ.items() if not key.startswith("TROVE_")} | KEYS
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(["taskset", "-c", "0", *map(str, argv)], env=env, stdout=log, stderr=log)
    started.append(process)
    return process.pid


def wait_port(port):
    for _ in range(200):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nothing listens on port {port}")


def nginx_conf(folder, port, backend):
    temps = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return (f"worker_processes 1; worker_rlimit_nofile 19000; daemon off; pid {folder}/nginx.pid; error_log {folder}/err;\n"
            f"events {{ worker_connections 18000; }}\nhttp {{ access_log off; keepalive_requests 1000000000; {temps}\n"
            f"upstream backend {{ server 127.0.0.1:{backend}; keepalive 512; }}\n"
            f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_http_version 1.1;\n"
            f"proxy_set_header Connection \"\"; proxy_pass http://backend; }} }} }}\n")


def haproxy_conf(port, backend):
    return ("global\n nbthread 1\n maxconn 9900\ndefaults\n mode http\n timeout connect 5s\n timeout client 60s\n"
            f" timeout server 60s\nfrontend f\n bind 127.0.0.1:{port}\n default_backend b\nbackend b\n balance leastconn\n"
            f" http-reuse always\n server s1 127.0.0.1:{backend}\n")


def drive(folder, args, port, pids):
    """One run: microseconds of CPU a poll of each process, p50, p99, failed, behind at most."""
    interval = args.users * 1000 / args.rate
    case, out = folder / "case.toml", folder / "run"
    case.write_text(CASE.format(lasts=ARRIVE_S + args.seconds, arrive=ARRIVE_S, settle=SETTLE_S, users=args.users,
                                interval=round(interval), port=port))
    shutil.rmtree(out, ignore_errors=True)
    run = subprocess.Popen(["taskset", "-c", "1", str(args.soak), "run", str(case), "--out", str(out)],
                           env=os.environ | KEYS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # All users are there from when the warm-up ends; the harness is ready some moments after its start.
    while not (out / "intervals.jsonl").exists() and run.poll() is None:
        time.sleep(0.05)
    time.sleep(max(0.0, ARRIVE_S - 5 + 1))
    before, began = [ticks(pid) for pid in pids], time.monotonic()
    time.sleep(args.seconds - 4)
    spent, lasted = [ticks(pid) - was for pid, was in zip(pids, before)], time.monotonic() - began
    run.wait()
    report = json.loads((out / "report.json").read_text())
    poll = report["kinds"]["poll"]
    objective = report["verdict"]["objectives"][0]
    return {
        "cpu": [ticks * TICK_US / (args.rate * lasted) for ticks in spent],
        "p50": poll["service"]["p50_us"], "p99": objective["latency_us"],
        "failed": sum(poll["failed"].values()), "behind": report["behind_us_max"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=9_800, help="HAProxy needs two descriptors each, and a process here has 20,000")
    parser.add_argument("--rate", type=int, default=8_000, help="polls a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--trove", type=Path, default=ROOT / "target/release/trove")
    parser.add_argument("--soak", type=Path, default=ROOT / "target/release/soak")
    args = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin"
    missing = [name for name in ("nginx", "haproxy", "taskset") if not shutil.which(name)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    folder, started = Path(tempfile.mkdtemp(prefix="paced.")), []
    folder.chmod(0o755)
    try:
        serve, shim, nginx, haproxy = (free_port() for _ in range(4))
        server = spawn(folder, "serve", [args.trove, "serve", "--listen", f"127.0.0.1:{serve}", "--ops-listen", "127.0.0.1:0",
                                         "--store", f"embedded:{folder}/store"], started)
        wait_port(serve)
        proxies = {"direct": (serve, None)}
        pid = spawn(folder, "shim", [args.trove, "shim", "--listen", f"127.0.0.1:{shim}", "--ops-listen", "127.0.0.1:0",
                                     "--upstream", f"blue=127.0.0.1:{serve}"], started)
        wait_port(shim)
        proxies["shim"] = (shim, pid)
        (folder / "nginx.conf").write_text(nginx_conf(folder, nginx, serve))
        pid = spawn(folder, "nginx", ["nginx", "-c", folder / "nginx.conf", "-p", folder], started)
        wait_port(nginx)
        workers = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
        proxies["nginx"] = (nginx, int(workers[0]))
        (folder / "haproxy.cfg").write_text(haproxy_conf(haproxy, serve))
        proxies["haproxy"] = (haproxy, spawn(folder, "haproxy", ["haproxy", "-db", "-f", folder / "haproxy.cfg"], started))
        wait_port(haproxy)
        rows = {name: [] for name in proxies}
        for _ in range(args.rounds):
            for name, (port, pid) in proxies.items():
                rows[name].append(drive(folder, args, port, [server] + ([pid] if pid else [])))
        print(f"{args.rate} polls/s from {args.users} connections, {args.rounds} rounds of {args.seconds} s, medians")
        print(f"{'':<10}{'own cpu us':>11}{'server us':>11}{'p50 us':>8}{'p99 us':>9}{'failed':>8}{'behind us':>11}{'shim/it':>9}")
        own = {name: [row["cpu"][1] if len(row["cpu"]) > 1 else 0.0 for row in of] for name, of in rows.items()}
        for name, of in rows.items():
            median = lambda key, of=of: statistics.median(row[key] for row in of)
            ratio = "" if name == "direct" else f"{statistics.median(a / b for a, b in zip(own['shim'], own[name])):.2f}"
            print(f"{name:<10}{statistics.median(own[name]):>11.2f}{statistics.median(row['cpu'][0] for row in of):>11.2f}"
                  f"{median('p50'):>8.0f}{median('p99'):>9.0f}{sum(row['failed'] for row in of):>8}"
                  f"{max(row['behind'] for row in of):>11}{ratio:>9}")
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
