#!/usr/bin/env bash
# A card in at most 8 minutes: are its numbers right, and how fast is a step on it?
#
#     pip install -e ".[cuda,test]"            # and torch, transformers and reasoning-from-scratch, to compare with
#     bash benchmarks/on_device.sh --out result
#     bash benchmarks/on_device.sh --device cpu --workload tiny --out result      # the same without a card
#
# 1. The golden cases: loss, gradients and update against the reference's numbers, in float32.
# 2. Decoding and update at Qwen3-0.6B's shape, 8 answers of 512 tokens, as shares of the card's bandwidth and product rate.
# 3. The same against the book's loop and Hugging Face generate, where torch is installed.
#
# Writes OUT/on_device.json and OUT/on_device.md, a section for docs/performance.md. A part that fails or takes too long is
# reported there, and the others go on. Exit code 0: all parts ran; 1: one did not; 2: bad arguments.
set -uo pipefail
cd "$(dirname "$0")/.."
device=gpu workload=600m out=
while [ $# -gt 0 ]; do
  case "$1" in
    --device) device="$2" ;;
    --workload) workload="$2" ;;
    --out) out="$2" ;;
    *) echo "error: unknown argument $1; arguments are --device gpu|cpu, --workload 600m|tiny and --out FOLDER." >&2; exit 2 ;;
  esac
  shift 2
done
[[ "$device" =~ ^(gpu|cpu)$ && "$workload" =~ ^(600m|tiny)$ && -n "$out" ]] || {
  echo "error: give --out FOLDER, --device gpu or cpu, and --workload 600m or tiny." >&2; exit 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
dtype=bfloat16 tokens=512
[ "$device" = gpu ] || dtype=float32
[ "$workload" = 600m ] || tokens=64
failed=0

part() {  # part NAME SECONDS COMMAND...
  local name=$1 limit=$2 start=$SECONDS code
  shift 2
  echo "== $name"
  timeout "$limit" "$@" > "$out/$name.txt" 2>&1
  code=$?
  echo "$name $code $((SECONDS - start))" >> "$out/parts"
  tail -n 3 "$out/$name.txt"
  [ $code -eq 0 ] || failed=1
}

: > "$out/parts"
part golden 150 python -m pytest -n 0 -q -m "slow or not slow" tests/loss/test_golden_losses.py tests/qwen/test_golden_logits.py
part ours 150 python benchmarks/compare.py --workload "$workload" --device "$device" --dtypes "$dtype" --new-tokens "$tokens" \
  --peers ours --repeats 3 --limit 140 --json "$out/ours.json"
peers=ours
python -c "import torch" 2> "$out/torch.txt" && python -c "import reasoning_from_scratch" 2>> "$out/torch.txt" && peers=$peers,book
python -c "import torch, transformers" 2>> "$out/torch.txt" && peers=$peers,hf
[ $peers = ours ] || part peers 170 python benchmarks/compare.py --workload "$workload" --device "$device" --dtypes "$dtype" \
  --new-tokens 64 --peers $peers --repeats 1 --limit 80 --json "$out/peers.json"
python - "$out" <<'PYTHON'
import datetime, json, pathlib, platform, sys
import jax
out = pathlib.Path(sys.argv[1])
parts = {name: {"exit": int(code), "seconds": int(seconds)} for name, code, seconds in map(str.split, (out / "parts").read_text().splitlines())}
read = lambda name: json.loads((out / f"{name}.json").read_text()) if (out / f"{name}.json").exists() else None
device = jax.devices()[0]
result = {
    "date": datetime.date.today().isoformat(), "device": device.device_kind, "machine": platform.platform(),
    "python": platform.python_version(), "jax": jax.__version__, "parts": parts, "ours": read("ours"), "peers": read("peers"),
}
(out / "on_device.json").write_text(json.dumps(result, indent=2) + "\n")
lines = [f"## {result['device']}, {result['date']}", "", f"Python {result['python']}, jax {result['jax']}.", ""]
for name, part in parts.items():
    state = "passed" if part["exit"] == 0 else "took too long" if part["exit"] == 124 else f"failed with exit code {part['exit']}"
    lines += [f"**{name}** {state} after {part['seconds']} s.", "", *(out / f"{name}.txt").read_text().splitlines()[-40:], ""]
(out / "on_device.md").write_text("\n".join(lines) + "\n")
print(f"wrote {out / 'on_device.json'} and {out / 'on_device.md'}")
PYTHON
[ $? -eq 0 ] || failed=1
exit $failed
