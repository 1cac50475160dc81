#!/usr/bin/env python3
"""Writes the small copies of the golden complete steps that tests/golden holds.

Usage: reduce-golden.py FOLDER  (with full_t1.safetensors and full_t2.safetensors)

Dropped are the arrays that follow from others by one product: `scaled.*` (= `scale.*` times `grad.*`) and the weighted
per-sample losses. What is kept is copied byte for byte, header text included.
"""
import json
import pathlib
import struct
import sys

DROPPED = ("scaled.", "per.c51_weighted", "per.iqn_weighted")


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    meta = header.pop("__metadata__")
    body = data[8 + length :]
    return meta, {name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write(path, meta, arrays):
    header, body = {"__metadata__": meta}, b""
    for name in sorted(arrays):
        entry, values = arrays[name]
        header[name] = {**entry, "data_offsets": [len(body), len(body) + len(values)]}
        body += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
    for name in ("full_t1.safetensors", "full_t2.safetensors"):
        meta, arrays = read(source / name)
        kept = {k: v for k, v in arrays.items() if not k.startswith(DROPPED)}
        write(target / name, meta, kept)
        print(f"{name}: {len(kept)} of {len(arrays)} arrays, {(target / name).stat().st_size} bytes")


main()
