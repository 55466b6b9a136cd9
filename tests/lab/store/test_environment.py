from __future__ import annotations

from gence.lab.store.environment import commit


def test_the_commit_can_be_said_where_there_is_no_history(monkeypatch):
    commit.cache_clear()
    monkeypatch.setenv("GENCE_COMMIT", "f00")
    assert commit() == "f00"
    commit.cache_clear()
