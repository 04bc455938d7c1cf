"""What a client of Python does: types in both formats, batches, COPY, pipelines, errors."""

import datetime
import decimal
import sys
import uuid

import psycopg

connection = psycopg.connect(sys.argv[1], prepare_threshold=1)
with connection.transaction():
    connection.execute(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT, balance NUMERIC(10,2), "
        "opened DATE, code UUID)"
    )

balance, opened, code = decimal.Decimal("1.50"), datetime.date(2024, 2, 29), uuid.UUID(int=7)
with connection.cursor() as cursor:
    rows = [(i, f"owner {i}", balance, opened, code) for i in range(20)]
    cursor.executemany("INSERT INTO account VALUES (%s, %s, %s, %s, %s)", rows)
connection.commit()

for binary in (False, True):
    with connection.cursor(binary=binary) as cursor:
        for i in range(8):
            cursor.execute("SELECT * FROM account WHERE id = %s", (i,))
            assert cursor.fetchone() == (i, f"owner {i}", balance, opened, code)
connection.commit()

with connection.cursor() as cursor:
    with cursor.copy("COPY account (id, owner) FROM STDIN") as copy:
        for i in range(100, 200):
            copy.write_row((i, None))
    with cursor.copy("COPY account TO STDOUT") as copy:
        assert sum(1 for _ in copy.rows()) == 120
connection.commit()

with connection.pipeline():
    cursors = [connection.execute("SELECT %s::INTEGER + 1", (i,)) for i in range(10)]
    assert [cursor.fetchone()[0] for cursor in cursors] == list(range(1, 11))
connection.commit()

try:
    connection.execute("INSERT INTO account VALUES (1)")
    sys.exit("a second account 1 was taken")
except psycopg.errors.UniqueViolation:
    connection.rollback()

# What a pipeline sends before its end is one transaction.
connection.autocommit = True
try:
    with connection.pipeline():
        connection.execute("INSERT INTO account VALUES (1000)")
        connection.execute("INSERT INTO account VALUES (1)")
    sys.exit("a second account 1 was taken")
except psycopg.errors.UniqueViolation:
    pass
count = connection.execute("SELECT count(*) FROM account WHERE id = 1000").fetchone()[0]
assert count == 0, count
connection.execute("DEALLOCATE ALL")
