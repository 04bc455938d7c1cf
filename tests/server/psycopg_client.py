"""A Python client with psycopg: types in both formats, batches, COPY, pipelines, errors."""

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

# Times with a zone, as parameters, results and in COPY.
at = datetime.datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
connection.execute("CREATE TABLE moment (id INTEGER PRIMARY KEY, at TIMESTAMPTZ DEFAULT now(), local TIMESTAMP)")
connection.execute("INSERT INTO moment VALUES (1, %s, %s)", (at, at))
connection.execute("INSERT INTO moment VALUES (2, %b, %b)", (at, at.replace(tzinfo=None)))
with connection.cursor() as cursor:
    with cursor.copy("COPY moment FROM STDIN") as copy:
        copy.write_row((3, at, at.replace(tzinfo=None)))
    with cursor.copy("COPY moment TO STDOUT") as copy:
        copied = {bytes(row) for row in copy}
    assert b"3\t2024-02-29 10:30:00.000005+00\t2024-02-29 12:30:00.000005\n" in copied, copied
for binary in (False, True):
    for prepare in (False, True):
        cursor = connection.cursor(binary=binary).execute("SELECT at, local, now() FROM moment WHERE at = %s", (at,), prepare=prepare)
        found = cursor.fetchall()
        assert len(found) == 3 and all(row[0] == at and row[0].utcoffset() is not None for row in found), found
        # PostgreSQL's cast to TIMESTAMP takes the time in the session's zone, which is UTC.
        assert sorted(row[1].hour for row in found) == [10, 12, 12], found
        assert abs(datetime.datetime.now(datetime.timezone.utc) - found[0][2]) < datetime.timedelta(hours=1)
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

with connection.cursor(name="accounts") as cursor:
    cursor.itersize = 7
    cursor.execute("SELECT id FROM account WHERE id >= %s ORDER BY id", (100,))
    assert cursor.description[0].name == "id"
    assert cursor.fetchone() == (100,)
    assert cursor.fetchmany(2) == [(101,), (102,)]
    assert [row[0] for row in cursor] == list(range(103, 200))
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

# All statements of a pipeline are one transaction.
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
# A violated constraint has fields of its own.
connection.execute(
    "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, "
    "price INTEGER CONSTRAINT not_free CHECK (price > 0))"
)
connection.execute("INSERT INTO item VALUES (1, 'nut', 1), (2, 'bolt', 1)")


def violated(statement, code, column, constraint):
    try:
        connection.execute(statement)
    except psycopg.errors.IntegrityError as error:
        diag = error.diag
        found = (diag.sqlstate, diag.schema_name, diag.table_name)
        found += (diag.column_name, diag.constraint_name, diag.datatype_name)
        assert found == (code, "public", "item", column, constraint, None), found
    else:
        sys.exit(f"{statement} was taken")


violated("INSERT INTO item VALUES (1, 'rod', 1)", "23505", None, "item_pkey")
violated("UPDATE item SET name = 'nut' WHERE id = 2", "23505", None, "item_name_key")
violated("INSERT INTO item VALUES (3, NULL, 1)", "23502", "name", None)
violated("INSERT INTO item VALUES (3, 'rod', 0)", "23514", None, "not_free")
violated("CREATE UNIQUE INDEX prices ON item (price)", "23505", None, "prices")
violated("ALTER TABLE item ADD CONSTRAINT dear CHECK (price > 1)", "23514", None, "dear")
violated("ALTER TABLE item ADD maker TEXT NOT NULL", "23502", "maker", None)
try:
    connection.execute("SELECT 1 / 0")
except psycopg.errors.DivisionByZero as error:
    assert error.diag.table_name is None

# A conflict names the table.
other = psycopg.connect(sys.argv[1], autocommit=True)
for tables, read in [("in table \"item\"", "item"), ("\"account\", \"item\"", "item, account")]:
    try:
        with connection.transaction():
            connection.execute(f"SELECT sum(price) FROM {read}").fetchone()
            other.execute("UPDATE item SET price = price + 1")
            connection.execute("UPDATE item SET price = 7 WHERE id = 1")
        sys.exit("a conflict was not noticed")
    except psycopg.errors.SerializationFailure as error:
        assert tables in error.diag.message_detail, error.diag.message_detail
other.close()
connection.execute("DEALLOCATE ALL")
