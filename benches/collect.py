#!/usr/bin/env python3
"""CPU of a poll that collects one find, on Redis: the server's and Redis's (target T5).

    cargo build --release && benches/collect.py

Starts a Redis and `trove serve` on one core with a hunt of one repeatable treasure. Round after round every player gets a
find in bulk, and polls once over 64 keep-alive connections, which collects it; then polls again with nothing to collect,
for comparison. CPU time comes from /proc/PID/schedstat of the two processes while the polls run. Needs redis-server.
"""
import argparse
import http.client
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

TROVE = Path(__file__).resolve().parent.parent / "target/release/trove"
# On a busy machine no poll is to be answered before its credit is done.
KEYS = {"TROVE_TOKEN_KEY": "t" * 32, "TROVE_ADMIN_KEY": "a" * 32, "TROVE_POLL__CREDIT_WAIT_MS": "1000"}
CONNECTIONS = 64


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


def cpu_us(pid):
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1000


def read_answer(stream):
    status = stream.readline()
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    body = stream.read(length)
    if b" 200 " not in status:
        sys.exit(f"a poll was answered {status!r}: {body!r}")
    return json.loads(body)


def poll_all(sockets, requests):
    """Every request once, as many at a time as there are connections; the sum of what was credited."""
    credited = 0
    for start in range(0, len(requests), len(sockets)):
        turn = list(zip(sockets, requests[start:start + len(sockets)]))
        for (sock, _), request in turn:
            sock.sendall(request)
        credited += sum(read_answer(stream)["credited"] for (_, stream), _ in turn)
    return credited


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--players", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for program in ("redis-server", "taskset"):
        if not shutil.which(program):
            sys.exit(f"not installed: {program}")
    if not TROVE.exists():
        sys.exit("build it first: cargo build --release")
    folder, started = Path(tempfile.mkdtemp(prefix="trove-bench.")), []

    def start(name, *argv):
        log = open(folder / f"{name}.log", "wb")
        started.append(subprocess.Popen(["taskset", "-c", "0", *map(str, argv)], stdout=log, stderr=log,
                                        env={**os.environ, **KEYS}))
        return started[-1].pid

    try:
        redis_port, port, ops = free_port(), free_port(), free_port()
        redis = start("redis", "redis-server", "--port", redis_port, "--bind", "127.0.0.1", "--save", "", "--appendonly",
                      "no", "--dir", folder)
        wait_for(redis_port)
        serve = start("trove", TROVE, "serve", "--listen", f"127.0.0.1:{port}", "--ops-listen", f"127.0.0.1:{ops}",
                      "--store", f"redis://127.0.0.1:{redis_port}")
        wait_for(port)
        tokens = subprocess.run([TROVE, "token", "--count", str(args.players), "--prefix", "p"], check=True,
                                capture_output=True, text=True, env={**os.environ, **KEYS}).stdout.split()
        requests = [f"GET /treasure/bench HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
                    for token in tokens]
        admin = http.client.HTTPConnection("127.0.0.1", port)

        def manage(method, path, body=None):
            admin.request(method, path, body, {"Authorization": "Bearer " + KEYS["TROVE_ADMIN_KEY"],
                                               "Content-Type": "application/json"})
            answer = admin.getresponse()
            text = answer.read()
            if answer.status == 503 and path.endswith("/finds"):    # the same finds again: none is recorded twice
                return manage(method, path, body)
            if answer.status >= 300:
                sys.exit(f"{method} {path}: {answer.status} {text!r}")
            return json.loads(text)

        hunt = {"id": "bench", "name": "Bench", "treasures": [{"id": "t", "coins": 5, "repeatable": True}]}
        manage("PUT", "/hunts/bench", json.dumps(hunt))
        manage("POST", "/hunts/bench/open")
        sockets = []
        for _ in range(CONNECTIONS):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.append((sock, sock.makefile("rb")))
        poll_all(sockets, requests)
        figures = {"collecting": [], "nothing to collect": []}
        for nth in range(args.rounds + 1):                # the first round warms up and is dropped
            for first in range(0, args.players, 1000):
                last = min(first + 1000, args.players)
                finds = [{"player": f"p{n + 1}", "treasure": "t", "id": f"r{nth}"} for n in range(first, last)]
                refused = manage("POST", "/hunts/bench/finds", json.dumps(finds))["refused"]
                if refused:
                    sys.exit(f"{refused} of {len(finds)} finds were refused")
            for name, expected in (("collecting", 5 * args.players), ("nothing to collect", 0)):
                before = cpu_us(serve), cpu_us(redis)
                credited = poll_all(sockets, requests)
                if credited != expected:
                    sys.exit(f"{credited} coins were credited, not {expected}")
                spent = [(after - was) / args.players for after, was in zip((cpu_us(serve), cpu_us(redis)), before)]
                if nth:
                    figures[name].append(spent)
        for name, spent in figures.items():
            server, store = (statistics.median(column) for column in zip(*spent))
            print(f"{name:<20}{server:>8.2f} us of the server's CPU a poll, {store:>6.2f} us of Redis's")
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
