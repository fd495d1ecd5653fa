"""The benchmark as a short table: one line per shape and direction, then one per implementation."""

PEERS = ("cudnn", "flash", "eager", "compiled")


def number(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def groups(rows):
    found = {}
    for row in rows:
        found.setdefault((row["shape"], row["what"]), []).append(row)
    return found


def show(result, out):
    def line(text=""):
        print(text.rstrip(), file=out)

    line(f"{result['machine']}, torch {result['torch']}, copy "
         f"{result['copy_bytes_per_second'] * 1e-12:.2f} TB/s; times as multiples of the floor; "
         f"cuDNN/ours > 1: ours is faster")
    line(f"{'shape':14} {'what':8} {'floor us':>8} {'planned':>8} {'best':>7} {'target':>6} "
         + " ".join(f"{peer:>8}" for peer in PEERS) + f" {'cudnn/ours':>10}  implementation")
    for (shape, what), rows in groups(result["rows"]).items():
        first = rows[0]
        timed = [row for row in rows if row["ms"] is not None]
        planned = next((r for r in timed if r["implementation"] == r["planned"]), None)
        best = min(timed, key=lambda row: row["ms"], default=None)
        peers = [first["baselines"].get(peer) for peer in PEERS]
        shown = planned or best
        line(f"{shape:14} {'fwd' if what == 'forward' else 'fwd+bwd':8} "
             f"{first['floor_ms'] * 1e3:8.1f} {number(planned and planned['multiple']):>8} "
             f"{number(best and best['multiple']):>7} {number(first['target'], '{:.1f}'):>6} "
             + " ".join(f"{number(t and t / first['floor_ms'], '{:.1f}'):>8}" for t in peers)
             + f" {number(shown and shown['ratio'].get('cudnn')):>10}  "
             + (shown["implementation"] if shown else "none serves it"))
    line()
    line(f"{'shape':14} {'implementation':20} {'fwd us':>9} {'x floor':>7} {'fwd+bwd us':>10} "
         f"{'x floor':>7} {'GHz':>5} {'workspace MB':>14} {'error/limit':>11}")
    by_implementation = {}
    for row in result["rows"]:
        if row["implementation"]:
            key = (row["shape"], row["implementation"])
            by_implementation.setdefault(key, {})[row["what"]] = row
    for (shape, implementation), whats in by_implementation.items():
        fwd, both = whats.get("forward"), whats.get("forward+backward")
        row = both or fwd
        error = row["error_over_limit"]
        verdict = "unverified" if error is None else (
            f"{error:.2f} {row['worst_result']}" if error <= 1 else
            f"WRONG {error:.3g} {row['worst_result']}")
        spaces = "/".join(f"{row[name] / 1e6:.1f}"
                          for name in ("forward_workspace_bytes", "backward_workspace_bytes"))
        line(f"{shape:14} {implementation:20} {number(fwd and fwd['ms'] * 1e3, '{:.1f}'):>9} "
             f"{number(fwd and fwd['multiple']):>7} "
             f"{number(both and both['ms'] * 1e3, '{:.1f}'):>10} "
             f"{number(both and both['multiple']):>7} {number(row.get('clock_ghz')):>5} {spaces:>14} "
             f"{verdict:>11}")
