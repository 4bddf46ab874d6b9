"""`python -m pagedjax.convert`: exit status, messages, and signals during a conversion."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pagedjax.convert import load_checkpoint
from tests.support.hf_folders import names
from tests.support.tiny_models import write_hf_folder

ROOT = Path(__file__).parents[2]


def _command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "pagedjax.convert", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        **options,
    )


def test_command_line(tmp_path):
    """Exit status, one-line errors; importing the package imports neither gguf nor transformers."""
    write_hf_folder("base", tmp_path / "hf")
    done = _command(tmp_path / "hf", tmp_path / "out", "--dtype", "bfloat16", "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert load_checkpoint(tmp_path / "out")[0].dtype == "bfloat16"
    failed = _command(tmp_path / "hf", tmp_path / "out")
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1
    assert failed.stderr.startswith("error: ") and "exists" in failed.stderr
    shown = _command(tmp_path / "nowhere", tmp_path / "new", "--debug")
    assert shown.returncode != 0 and "Traceback" in shown.stderr
    code = "import sys, pagedjax.convert; print({'gguf', 'transformers'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "set()"


# A shell starts background jobs with SIGINT ignored, and Python then installs no handler, so the
# program sets the handler of a command started at a terminal. At the second tensor the conversion
# prints a line and waits for the signal: it is then still running, and not in a garbage collection,
# whose callbacks lose exceptions.
HEARS_INTERRUPTS = """
import runpy, signal, time
from pagedjax.convert import assembly
signal.signal(signal.SIGINT, signal.default_int_handler)
cast, names = assembly.cast, []
def waits(name, array, dtype):
    names.append(name)
    if len(names) == 2:
        print("waits", flush=True)
        while True:
            time.sleep(0.05)
    return cast(name, array, dtype)
assembly.cast = waits
runpy.run_module("pagedjax.convert", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "sent, status, said",
    [(signal.SIGINT, 130, "error: interrupted\n"), (signal.SIGTERM, 143, "")],
    ids=["keyboard", "terminate"],
)
def test_a_signal_while_tensors_are_written_leaves_no_folder(tmp_path, sent, status, said):
    write_hf_folder("base", tmp_path / "hf")
    command = [sys.executable, "-c", HEARS_INTERRUPTS, str(tmp_path / "hf"), str(tmp_path / "out")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "waits\n"
            assert len(names(tmp_path)) == 2
            process.send_signal(sent)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, stderr) == (status, said)
    assert names(tmp_path) == ["hf"]
