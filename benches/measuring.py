#!/usr/bin/env python3
"""What measuring costs a poll: a build with measurements beside one without, in one run.

    cargo build --release --features unmeasured && cp target/release/trove target/trove-unmeasured
    cargo build --release && benches/measuring.py

Twice over. By valgrind's callgrind: instructions in user space a poll, from memory, over one connection: the difference
between many polls and few, so that the start does not count; only what timers do meanwhile differs from run to run. And by CPU time (user and
system) a poll under wrk at 64 connections, both servers in turn, round after round: this is the share that counts, and it is
noisy where others use the machine. Needs valgrind and wrk from Debian.
"""
import argparse
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import poll

BUILDS = {"measured": poll.TROVE, "unmeasured": poll.ROOT / "target/trove-unmeasured"}


def ask(port, request, count):
    """Sends `count` requests, one after another, on one connection."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        for _ in range(count):
            stream.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += stream.recv(65536)
            head, body = answer.split(b"\r\n\r\n", 1)
            assert b" 200 OK" in head, head
            length = int(re.search(rb"content-length: (\d+)", head)[1])
            while len(body) < length:
                body += stream.recv(65536)


def instructions(folder, binary, polls):
    """All instructions of a server that answers so many polls."""
    run = folder / f"run-{binary.name}-{polls}"
    run.mkdir()
    shutil.copytree(folder / "prepared", run / "store")
    port = poll.free_port()
    out = run / "callgrind.out"
    argv = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", binary, "serve", "--listen",
            f"127.0.0.1:{port}", "--ops-listen", "127.0.0.1:0", "--store", f"embedded:{run}/store"]
    with open(run / "log", "wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        poll.wait_for(port)
        token = (folder / "tokens").read_text().split()[0]
        request = f"GET /treasure/bench HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        ask(port, request, polls)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    return int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.M)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--polls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=3)
    args = parser.parse_args()
    for program in ("valgrind", "wrk", "taskset"):
        if not shutil.which(program):
            sys.exit(f"not installed: {program} (apt-get install valgrind wrk)")
    for binary in BUILDS.values():
        if not binary.exists():
            sys.exit(f"{binary} is missing; see benches/measuring.py --help")
    folder = Path(tempfile.mkdtemp(prefix="trove-bench."))
    started = []
    (folder / "wrk.lua").write_text(poll.LUA)
    try:
        servers = {}
        for name, binary in BUILDS.items():
            own = folder / name
            own.mkdir()
            poll.TROVE = binary
            servers[name] = (own, *poll.start_trove(own, started))
            shutil.copy(folder / "wrk.lua", own)
        cost = {name: [] for name in servers}
        for nth in range(args.rounds + 1):                # the first round warms up and is dropped
            for name, (own, pid, url) in servers.items():
                before = poll.ticks(pid)
                requests, _, errors = poll.drive(own, url, 64, args.seconds)
                if nth:
                    cost[name].append((poll.ticks(pid) - before) * poll.TICK_US / max(requests, 1))
                    print(f"{name:<12}{cost[name][-1]:>8.2f} us of CPU a poll, {errors} errors", flush=True)
        ratios = [a / b for a, b in zip(cost["measured"], cost["unmeasured"])]
        print(f"CPU, measured to unmeasured: median {statistics.median(ratios):.3f}, "
              f"least of each {min(cost['measured']) / min(cost['unmeasured']):.3f}", flush=True)
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(10)
        started.clear()
        shutil.copytree(folder / "measured" / "store", folder / "prepared")
        shutil.copy(folder / "measured" / "tokens", folder)
        each = {}
        for name, binary in BUILDS.items():
            few, many = (instructions(folder, binary, polls) for polls in (args.polls // 10, args.polls))
            each[name] = (many - few) / (args.polls - args.polls // 10)
            print(f"{name:<12}{each[name]:>8.0f} instructions in user space a poll", flush=True)
        print(f"measuring: {each['measured'] - each['unmeasured']:.0f} instructions a poll, "
              f"{each['measured'] / each['unmeasured'] - 1:.1%} of those in user space")
    finally:
        for process in started:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
