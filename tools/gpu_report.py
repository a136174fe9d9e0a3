#!/usr/bin/env python3
"""Joins what scripts/gpu_check.sh left in its output folder into gpu_check.json and gpu_check.md.

Standard library only. PyTorch's figures are those of bench/baselines/torch_pi0.py in the same run."""
import argparse
import json
import pathlib
import re
import time


def read_steps(folder):
    steps = []
    for line in (folder / "log" / "steps.tsv").read_text().splitlines():
        name, status, seconds, command = line.split("\t", 3)
        steps.append({"step": name, "status": int(status), "seconds": float(seconds), "command": command})
    return steps


ORDER = ["pi0", "pi0_h50", "pi0_v2", "pi0_v1", "pi05_h10", "pi05_h50", "pi0_b4", "pi0_b16"]
MODES = {"_eager": "kernel by kernel", "_tuned": "tuned products"}


def read_benches(folder):
    rows = {path.stem: json.loads(path.read_text()) for path in (folder / "bench").glob("*.json")}
    for name, row in rows.items():
        row["mode"] = next((words for ending, words in MODES.items() if name.endswith(ending)), "")
    return dict(sorted(rows.items(), key=lambda row: (ORDER.index(row[0]) if row[0] in ORDER else len(ORDER), row[0])))


def read_products(folder):
    """What `tendon tune` measured of each product: kernel and µs of the library's first choice, its best, our own best, the chosen one."""
    file = folder / "log" / "tune.txt"
    if not file.exists():
        return []
    rows = []
    for line in file.read_text().splitlines():
        if found := re.fullmatch(r"\[\d+/\d+\] (.+)", line):
            rows.append({"product": found[1], "chosen": None})
        elif found := re.fullmatch(r"  (library default|library best|own best) +(?:-|([\d.]+) µs (\S+))", line):
            measured = {"us": float(found[2]), "kernel": found[3]} if found[3] else None
            rows[-1][found[1].replace(" ", "_")] = measured
        elif found := re.fullmatch(r"  chosen +([^ ,]+),.*", line):
            rows[-1]["chosen"] = found[1]
    return rows


def product_table(products):
    lines = ["| product | library's first µs | library's best µs | own best µs | chosen |", "|---|---|---|---|---|"]
    for row in products:
        us = [number(row[name]["us"] if row[name] else None) for name in ("library_default", "library_best", "own_best")]
        lines.append(f"| {row['product']} | {' | '.join(us)} | {row['chosen'] or '**none is right**'} |")
    return lines


def read_torch(folder):
    """The baseline's rows by workload, "pi0:3:20:10:1"."""
    file = folder / "log" / "torch.json"
    if not file.exists():
        return {}
    return {row["workload"]: row for row in json.loads(file.read_text())["rows"]}


def beside(torch, bench):
    """What PyTorch took for the same workload, or None."""
    model = "pi05" if "pi05" in bench["checkpoint"] else "pi0"
    return torch.get(":".join(str(x) for x in (model, bench["views"], bench["prompt_tokens"], bench["horizon"], bench["batch"])))


def number(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value):
    return "–" if value is None else f"{100 * value:.0f} %"


def describe(row):
    text = f"{'π0.5' if 'pi05' in row['checkpoint'] else 'π0'}, {row['views']} views, S={row['prefix_rows']}, H={row['horizon']}"
    if row["batch"] != 1:
        text += f", batch {row['batch']}"
    if row["precision"] != "bf16":
        text += f", {row['precision']}"
    return text + (f", {row['mode']}" if row["mode"] else "")


def latency_table(benches, torch):
    lines = [
        "| workload (10 steps; bf16 where nothing else is said) | p50 ms | p99 ms | device p50 ms | PyTorch p50 ms | ratio | floor ms | of the floor | J a call | first call ms | calls |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in benches.values():
        p50 = row["wall_ms"]["p50"]
        other = beside(torch, row)
        torch_ms = other["ms"]["p50"] if other else None
        device = row["device_ms"]["p50"] if row["device_ms"] else None
        lines.append(
            f"| {describe(row)} | {number(p50)} | {number(row['wall_ms']['p99'])} | {number(device)} | {number(torch_ms)} "
            f"| {number(p50 / torch_ms if torch_ms else None)} | {number(row['floor']['ms'])} | {percent(row['floor']['share'])} "
            f"| {number(row['energy']['j_per_call'])} | {number(row['first_call_ms'])} | {row['calls']} |"
        )
    return lines


def stage_table(benches, torch):
    lines = ["| workload | stage | ms | PyTorch ms | floor ms | of the floor |", "|---|---|---|---|---|---|"]
    for row in benches.values():
        other = beside(torch, row)
        for stage in row["stages"]:
            torch_ms = other["stage_ms"].get(stage["stage"]) if other else None
            floor = stage["floor_ms"]
            share = floor / stage["ms"] if floor and stage["ms"] else None
            lines.append(
                f"| {describe(row)} | {stage['stage']} | {number(stage['ms'])} | {number(torch_ms)} | {number(floor)} | {percent(share)} |"
            )
    return lines


def start_table(benches):
    lines = ["| workload | load s | tables s | weights s (GB/s) | plan s | on the card GB | weights GB |", "|---|---|---|---|---|---|---|"]
    for row in benches.values():
        s, m = row["seconds"], row["memory_bytes"]
        lines.append(
            f"| {describe(row)} | {number(s['load'])} | {number(s['tables'])} | {number(s['weights'])} ({number(s['weights_gb_per_s'], 1)}) "
            f"| {number(s['plan'])} | {number(m['device_used'] * 1e-9)} | {number(m['weights_copied'] * 1e-9)} |"
        )
    return lines


def step_table(steps):
    lines = ["| step | result | s |", "|---|---|---|"]
    for step in steps:
        result = {0: "ok", -1: "left out: " + step["command"]}.get(step["status"], f"**failed ({step['status']})**")
        lines.append(f"| {step['step']} | {result} | {step['seconds']:.1f} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    folder = options.folder
    steps, benches, torch, products = read_steps(folder), read_benches(folder), read_torch(folder), read_products(folder)
    card_file = folder / "log" / "card.txt"
    card = card_file.read_text().strip().splitlines()[-1] if card_file.exists() else ""
    any_row = next(iter(benches.values()), {})
    device = any_row.get("device", {})
    energy = any_row.get("energy", {})
    report = {
        "schema": 1,
        "commit": options.commit,
        "date": time.strftime("%Y-%m-%d"),
        "card": card,
        "device": device,
        "ok": all(step["status"] in (0, -1) for step in steps),
        "steps": steps,
        "torch": torch,
        "bench": benches,
        "products": products,
    }
    (folder / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")
    lines = [f"# GPU check, {report['date']}", ""]
    lines.append(
        f"{device.get('name', '?')}, driver {device.get('driver', '') or '?'}, {device.get('runtime', '') or '?'}, commit `{options.commit}`; clocks while "
        f"running: SM {number(energy.get('core_mhz'), 0)} MHz, memory {number(energy.get('memory_mhz'), 0)} MHz; mean power {number(energy.get('mean_w'), 0)} W."
    )
    if card:
        amd = device.get("architecture", "").startswith("gfx")
        what = "ROCm" if amd else "`nvidia-smi` (name, driver, most SM and memory clock, power limit, temperature, use)"
        lines += ["", f"{what}: {card}"]
    if benches:
        lines += ["", *latency_table(benches, torch), "", *stage_table(benches, torch), "", *start_table(benches)]
    if products:
        lines += ["", *product_table(products)]
    lines += ["", *step_table(steps), ""]
    (folder / "gpu_check.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
