#!/usr/bin/env python3
"""Checks the licence of every crate that is built in against the allow list of deny.toml.

For machines without cargo-deny. A crate whose expression has an allowed way through it passes.
"""
import json
import re
import subprocess
import sys
import tomllib

with open("deny.toml", "rb") as file:
    ALLOWED = set(tomllib.load(file)["licenses"]["allow"])


def passes(expression):
    """Evaluates an SPDX expression with every allowed licence as True."""
    tokens = re.findall(r"\(|\)|AND|OR|[A-Za-z0-9.+-]+(?: WITH [A-Za-z0-9.+-]+)?", expression.replace("/", " OR "))
    words = {"(": "(", ")": ")", "AND": " and ", "OR": " or "}
    return eval("".join(words.get(token, str(token in ALLOWED)) for token in tokens))  # only True, False, and, or


metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1"]))
refused = [
    f"{package['name']} {package['version']}: {package['license']}"
    for package in metadata["packages"]
    if not package["license"] or not passes(package["license"])
]
for line in refused:
    print(line)
print(f"{len(metadata['packages'])} crates, {len(refused)} with a licence that deny.toml does not allow")
sys.exit(1 if refused else 0)
