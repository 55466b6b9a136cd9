from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gence.lab.sweep.claims import Claims

ELSEWHERE = json.dumps({"host": "elsewhere", "boot": "x", "pid_space": "y", "pid": 1, "started": "1"})


def test_claims_are_exclusive_and_a_dead_holders_is_taken_over(tmp_path):
    with Claims(tmp_path) as one, Claims(tmp_path) as two:
        assert one.take("a")
        assert not two.take("a")
        assert two.held_elsewhere("a")
        one.release("a")
        assert two.take("a")
    code = (
        "import sys; from gence.lab.sweep.claims import Claims; from pathlib import Path; import os;"
        "Claims(Path(sys.argv[1])).take('b'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "claims" / "b.claim").exists()
    with Claims(tmp_path) as three:
        assert three.take("b")
    assert not list((tmp_path / "claims").glob("*.claim"))


def test_another_machines_claim_lives_by_its_heartbeat(tmp_path):
    with Claims(tmp_path, heartbeat_s=0.05) as beating:
        assert beating.take("a")
        path = tmp_path / "claims" / "a.claim"
        os.utime(path, (0, 0))
        for _ in range(100):
            if path.stat().st_mtime > 0:
                break
            threading.Event().wait(0.02)
        assert path.stat().st_mtime > 0, "the thread renews it"
    foreign = tmp_path / "claims" / "c.claim"
    foreign.write_text(ELSEWHERE)
    with Claims(tmp_path, stale_after_s=60) as claims:
        assert not claims.take("c")
        os.utime(foreign, (0, 0))
        assert not claims.held_elsewhere("c")
        assert claims.take("c")


@pytest.mark.parametrize("content", [ELSEWHERE, ""], ids=["elsewhere", "garbled"])
def test_a_dead_claim_dated_ahead_is_taken_over_after_the_usual_age(tmp_path, content):
    (tmp_path / "claims").mkdir()
    path = tmp_path / "claims" / "a.claim"
    path.write_text(content)
    ahead = time.time() + 1e6
    os.utime(path, (ahead, ahead))
    with Claims(tmp_path, stale_after_s=0.3) as claims, Claims(tmp_path, stale_after_s=0.3) as later:
        assert claims.held_elsewhere("a"), "its holder may live"
        assert not claims.take("a")
        time.sleep(0.4)
        assert not claims.held_elsewhere("a")
        assert later.take("a")


def test_a_living_claim_of_a_machine_whose_clock_is_ahead_is_kept(tmp_path):
    (tmp_path / "claims").mkdir()
    path = tmp_path / "claims" / "a.claim"
    path.write_text(ELSEWHERE)
    with Claims(tmp_path, stale_after_s=0.3) as claims:
        for _ in range(8):
            os.utime(path, (time.time() + 5000,) * 2)  # its heartbeat
            time.sleep(0.1)
            assert not claims.take("a")


@pytest.mark.parametrize("content", [b"", b'{"host": "x', b"[]", b"\xff", b"{}"])
def test_a_garbled_claim_lives_by_its_age(tmp_path, content):
    (tmp_path / "claims").mkdir()
    path = tmp_path / "claims" / "a.claim"
    path.write_bytes(content)
    with Claims(tmp_path, stale_after_s=60) as claims:
        assert not claims.take("a"), "its holder may be writing it"
        os.utime(path, (0, 0))
        assert claims.take("a")


def test_ctrl_c_while_the_clock_is_read_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "claims").mkdir()
    claims = Claims(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", interrupted)
        with pytest.raises(KeyboardInterrupt):
            claims._file_system_time()
    assert not list((tmp_path / "claims").iterdir())
