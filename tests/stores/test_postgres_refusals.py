"""What PostgreSQL refuses is reported with the name of the role that it refused."""

from __future__ import annotations

import psycopg
import pytest

from onefold.engines.postgres import outbox
from onefold.engines.postgres.connection import PostgresAddress, translate

DENIED = psycopg.errors.InsufficientPrivilege("permission denied for table records")


def test_a_refusal_names_the_role_of_the_login() -> None:
    address = PostgresAddress("postgresql://clerk:pw@db.example/shop")
    error = translate(DENIED, address.shown, address.schema, address.role)
    assert "The role 'clerk' lacks a permission" in error.meaning
    assert "TO clerk;" in error.todo
    assert "pw" not in str(error)
    assert "The role 'clerk' may not use the outbox tables" in str(outbox.failed(DENIED, address.shown, address.role))


def test_where_the_url_names_none_it_is_who_libpq_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGUSER", "porter")
    assert PostgresAddress("postgresql://db.example/shop").role == "porter"
    assert "The role of this login lacks" in translate(DENIED, "db", "onefold").meaning
