"""Reading a compiled program, and the programs that the compilers for a GPU and a TPU make of two layers.

Those compilers are Python packages, which need no device: `jax[tpu]` and `jax[cuda13]`. A target is skipped where its compiler
is not installed.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import hlo  # noqa: E402

PROGRAM = """\
HloModule jit_f

%fused.slice (p0: f32[10,100], p1: s32[]) -> f32[1,100] {
  %p0 = f32[10,100]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %row = f32[1,100]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={1,100}
}

%fused.update (p0.1: f32[10,100], p1.1: f32[1,100], p2.1: s32[]) -> f32[10,100] {
  %p0.1 = f32[10,100]{1,0} parameter(0)
  %p1.1 = f32[1,100]{1,0} parameter(1)
  %p2.1 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %new = f32[10,100]{1,0} dynamic-update-slice(%p0.1, %p1.1, %p2.1, %zero.1)
}

%gemm_fusion_computation (a: bf16[8,100], b: bf16[100,50]) -> f32[8,50] {
  %a = bf16[8,100]{1,0} parameter(0)
  %b = bf16[100,50]{1,0} parameter(1)
  ROOT %dot = f32[8,50]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (t: (s32[], f32[10,100])) -> (s32[], f32[10,100]) {
  %t = (s32[], f32[10,100]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[10,100]{1,0} get-tuple-element(%t), index=1
  %row.1 = f32[1,100]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused.slice
  %x.1 = f32[10,100]{1,0} fusion(%x, %row.1, %i), kind=kLoop, calls=%fused.update
  %chosen = f32[1,100]{1,0} conditional(%i, %row.1, %row.1), branch_computations={%yes, %no}
  ROOT %out = (s32[], f32[10,100]{1,0}) tuple(%i, %x.1)
}

%condition (t.1: (s32[], f32[10,100])) -> pred[] {
  %t.1 = (s32[], f32[10,100]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.1), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%i.1, %ten), direction=LT
}

%until (t.2: (s32[], f32[10,100])) -> pred[] {
  %t.2 = (s32[], f32[10,100]{1,0}) parameter(0)
  ROOT %more = pred[] custom-call(%t.2), custom_call_target="more"
}

ENTRY %main (left: bf16[8,100], right: bf16[100,50], all: (s32[], f32[10,100])) -> f32[8,50] {
  %left = bf16[8,100]{1,0} parameter(0)
  %right = bf16[100,50]{1,0} parameter(1)
  %all = (s32[], f32[10,100]{1,0}) parameter(2)
  %ten.times = (s32[], f32[10,100]{1,0}) while(%all), condition=%condition, body=%body
  %often = (s32[], f32[10,100]{1,0}) while(%ten.times), condition=%until, body=%body
  %on.chip = bf16[8,100]{1,0:T(8,128)S(1)} copy(%left)
  %turned = bf16[50,100]{1,0} transpose(%right), dimensions={1,0}
  ROOT %gemm_fusion = f32[8,50]{1,0} fusion(%on.chip, %right), kind=kCustom, calls=%gemm_fusion_computation
}
"""


def test_the_cost_of_a_program():
    program = hlo.Program(PROGRAM)
    assert program.decode_loops() == ["body"]
    # A turn: reads and writes a row of 400 bytes and 4 of index; reads row and index and writes the row: 804 + 804.
    step = program.cost("body")
    assert (step.kernels, step.conditionals, step.transfers, step.bytes) == (2, 1, 0, 1608)
    # 11 turns; a copy into the chip reads 1,600; a transposition moves 2 x 10,000; a product reads 10,000, writes 1,600.
    whole = program.whole()
    assert (whole.kernels, whole.conditionals) == (22 + 3, 11)
    assert whole.bytes == 11 * 1608 + 1600 + 20_000 + 11_600
    assert whole.operations == 2 * 8 * 50 * 100
    assert whole.by_kind["product"] == 1
    assert program.copies("main", [(100, 50)]) == 1 and program.copies("main", [(8, 100)]) == 0  # that copy is on the chip
    assert program.collectives() == {}


def test_a_slice_or_an_update_in_a_nested_fusion_is_all_that_moves():
    """As in a TPU's programs."""
    text = PROGRAM.replace("%body (t:", """\
%outer (p0.o: f32[10,100], p1.o: s32[]) -> f32[10,100] {
  %p0.o = f32[10,100]{1,0} parameter(0)
  %p1.o = s32[] parameter(1)
  %row.o = f32[1,100]{1,0} fusion(%p0.o, %p1.o), kind=kLoop, calls=%fused.slice
  %less.o = f32[1,100]{1,0} negate(%row.o)
  ROOT %new.o = f32[10,100]{1,0} fusion(%p0.o, %less.o, %p1.o), kind=kLoop, calls=%fused.update
}

%nested (x.n: f32[10,100], i.n: s32[]) -> f32[10,100] {
  %x.n = f32[10,100]{1,0} parameter(0)
  %i.n = s32[] parameter(1)
  ROOT %out.n = f32[10,100]{1,0} fusion(%x.n, %i.n), kind=kLoop, calls=%outer
}

%body (t:""")
    assert hlo.Program(text).cost("nested").bytes == 400 + 4 + 400  # reads a row and the index, writes a row
    reshaped = text.replace("calls=%fused.slice\n  %less.o", "calls=%view\n  %less.o").replace("%outer (", """\
%view (p0.v: f32[10,100], p1.v: s32[]) -> f32[1,100] {
  %p0.v = f32[10,100]{1,0} parameter(0)
  %p1.v = s32[] parameter(1)
  ROOT %view.v = f32[1,100]{1,0} bitcast(%p0.v)
}

%outer (""")
    assert hlo.Program(reshaped).cost("nested").bytes == 4000 + 4 + 400  # another shape of all that is there


def test_attention_reads_the_filled_part():
    line = (
        '%a = (bf16[8,16,1,128]{3,2,1,0}, u8[0]{0}) custom-call(%q, %k, %v, %n, %n), custom_call_target="__cudnn$fmhaSoftmax", '
        'backend_config={"mask_type": "PADDING"}'
    )
    text = PROGRAM.replace("ENTRY %main", f"""\
%attention (q: bf16[8,1,16,128]) -> bf16[8,16,1,128] {{
  %q = bf16[8,1,16,128]{{3,2,1,0}} parameter(0)
  %k = bf16[8,600,8,128]{{3,2,1,0}} parameter(1)
  %v = bf16[8,600,8,128]{{3,2,1,0}} parameter(2)
  %n = s32[8]{{0}} parameter(3)
  ROOT {line}
}}

ENTRY %main""")
    cost = hlo.Program(text, filled=0.5).cost("attention")
    assert cost.bytes == 0.5 * 2 * 8 * 600 * 8 * 128 * 2 + 2 * 8 * 16 * 128 * 2
    assert cost.operations == 2 * 2 * (8 * 16 * 128) * 600


def run(*arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(BENCHMARKS / "accelerators.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=clean | environment, cwd=BENCHMARKS.parent)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "message"), [("h200x", "unknown target 'h200x'"), ("tpu", "unknown target 'tpu'")])
def test_unknown_targets(target, message):
    done = run("--target", target)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {message}") and not done.stdout


def rows_of(target, tmp_path, **work):
    flags = [text for name, value in work.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    done = run("--target", target, "--json", str(tmp_path / "rows.json"), *flags)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert "| operations, T |" in done.stdout and done.stdout.count(f"| {target} |") == len(rows) == 5
    return {row["program"].partition(",")[0]: row for row in rows}


SMALL = {"layers": 2, "vocab_size": 4096, "answers": 4, "new_tokens": 256, "prompt": 128}


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs jax[tpu]")
def test_two_layers_for_a_tpu(tmp_path):
    rows = rows_of("tpu-v5e:2x2", tmp_path, **SMALL | {"vocab_size": 151_936})
    for name in ("generate", "decode"):
        step = rows[name]["step"]
        assert step["transfers"] == 0 and 0.5 * step["weights"] < step["bytes"] < 1.2 * step["weights"]  # some stay on the chip
    assert rows["update"]["operations"] > 2.5 * rows["score"]["operations"]
    # The kernels keep no scores: four times as many tokens, four times the memory, not sixteen.
    longer = rows_of("tpu-v5e:2x2", tmp_path, **SMALL | {"vocab_size": 151_936, "new_tokens": 1024, "answers": 1})
    assert longer["update"]["temporaries"] < 1.25 * rows["update"]["temporaries"]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jax_cuda13_plugin"), reason="needs jax[cuda13]")
def test_two_layers_for_a_gpu(tmp_path):
    rows = rows_of("h100", tmp_path, **SMALL)
    for name in ("generate", "decode"):
        step = rows[name]["step"]
        assert step["conditionals"] == step["transfers"] == step["weight_copies"] == 0
        assert step["kernels"] <= 2 * 14 + 51
    assert rows["update"]["operations"] > 2.5 * rows["score"]["operations"]
    longer = rows_of("h100", tmp_path, **SMALL | {"new_tokens": 1024, "answers": 1})
    assert longer["update"]["temporaries"] < 1.25 * rows["update"]["temporaries"]
