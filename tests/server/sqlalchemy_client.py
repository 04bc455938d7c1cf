"""An application with SQLAlchemy: tables reflected, Core, ORM, savepoints, conflicts."""

import datetime
import decimal
import sys

from sqlalchemy import (
    CheckConstraint, Column, Date, ForeignKey, Index, Integer, LargeBinary, MetaData, Numeric,
    PrimaryKeyConstraint, String, Table, UniqueConstraint, Uuid, create_engine, func, insert, inspect, select, update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError, NotSupportedError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine(sys.argv[1], isolation_level="SERIALIZABLE")

# Tables created by MetaData, then reflected.
metadata = MetaData()
account = Table(
    "account",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", String(40), nullable=False, unique=True),
    Column("balance", Numeric(10, 2), server_default="0"),
    Column("opened", Date),
    Column("code", Uuid),
    Column("photo", LargeBinary),
    CheckConstraint("balance >= 0", name="not_overdrawn"),
    Index("account_opened", "opened"),
)
metadata.create_all(engine)
metadata.create_all(engine)  # finds that it is there

inspector = inspect(engine)
assert inspector.get_table_names() == ["account"], inspector.get_table_names()
assert inspector.has_table("account") and not inspector.has_table("nowhere")
columns = {column["name"]: column for column in inspector.get_columns("account")}
assert list(columns) == ["id", "owner", "balance", "opened", "code", "photo"], columns
assert str(columns["owner"]["type"]) == "VARCHAR(40)" and not columns["owner"]["nullable"]
assert str(columns["balance"]["type"]) == "NUMERIC(10, 2)"
assert inspector.get_view_names() == []
key = inspector.get_pk_constraint("account")
assert (key["name"], key["constrained_columns"]) == ("account_pkey", ["id"]), key
unique = inspector.get_unique_constraints("account")
assert [(one["name"], one["column_names"]) for one in unique] == [("account_owner_key", ["owner"])], unique
indexes = {one["name"]: one for one in inspector.get_indexes("account")}
assert list(indexes) == ["account_opened", "account_owner_key"], indexes
assert indexes["account_opened"]["column_names"] == ["opened"] and not indexes["account_opened"]["unique"], indexes
assert indexes["account_owner_key"]["duplicates_constraint"] == "account_owner_key", indexes
checks = inspector.get_check_constraints("account")
assert [(one["name"], one["sqltext"]) for one in checks] == [("not_overdrawn", "balance >= 0")], checks
assert inspector.get_foreign_keys("account") == []
assert inspector.get_table_comment("account") == {"text": None}

# A table of several keys, and all tables at once.
pair = Table(
    "pair",
    metadata,
    Column("b", Integer),
    Column("a", Integer),
    Column("note", String),
    PrimaryKeyConstraint("a", "b"),
    UniqueConstraint("note", "b", name="noted"),
)
pair.create(engine)
reflected = MetaData()
reflected.reflect(engine)
assert set(reflected.tables) == {"account", "pair"}, reflected.tables
again = reflected.tables["pair"]
assert [column.name for column in again.primary_key.columns] == ["a", "b"], again.primary_key
noted = [one for one in again.constraints if isinstance(one, UniqueConstraint)]
assert [column.name for column in noted[0].columns] == ["note", "b"], noted
pair.drop(engine)
metadata.remove(pair)

# Arrays as parameters and as results.
with engine.connect() as connection:
    members = connection.exec_driver_sql("SELECT i FROM generate_series(1, 9) AS g (i) WHERE i = ANY(%s)", ([2, 5, None],))
    assert members.scalars().all() == [2, 5]
    array = connection.exec_driver_sql("SELECT array_agg(i), ARRAY['a b', NULL] FROM generate_series(1, 3) AS g (i)")
    assert array.one() == ([1, 2, 3], ["a b", None])
assert "public" in inspector.get_schema_names()

# Core.
with engine.begin() as connection:
    rows = [
        {"owner": f"owner {i}", "balance": decimal.Decimal(i), "opened": datetime.date(2024, 1, 1 + i)} for i in range(20)
    ]
    connection.execute(insert(account), rows)
    changed = connection.execute(update(account).where(account.c.balance < 5).values(balance=account.c.balance + 1))
    assert changed.rowcount == 5, changed.rowcount
    added = connection.execute(insert(account).values(owner="last").returning(account.c.id, account.c.balance))
    assert added.one() == (21, 0)
    total = connection.execute(select(func.sum(account.c.balance), func.count()).select_from(account)).one()
    assert total == (195, 21), total
    again = upsert(account).values(id=1, owner="owner 0", balance=100)
    again = again.on_conflict_do_update(index_elements=["id"], set_={"balance": again.excluded.balance})
    connection.execute(again)
    page = connection.execute(select(account.c.owner).order_by(account.c.id.desc()).limit(2).offset(1)).scalars().all()
    assert page == ["owner 19", "owner 18"], page

for wrong in ({"owner": "last"}, {"owner": None}, {"owner": "new", "balance": -1}):
    try:
        with engine.begin() as connection:
            connection.execute(insert(account), wrong)
        sys.exit(f"{wrong} was taken")
    except IntegrityError:
        pass

# ORM.
class Base(DeclarativeBase):
    pass


class Task(Base):
    __tablename__ = "task"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    done: Mapped[bool] = mapped_column(default=False)
    hours: Mapped[float | None]


Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add_all(Task(name=f"task {i}", hours=i / 2) for i in range(50))
    session.commit()
    assert session.scalar(select(func.count(Task.id)).where(Task.hours >= 20)) == 10
    first = session.scalars(select(Task).where(Task.name.like("task 1%")).order_by(Task.id)).first()
    first.done = True
    try:
        with session.begin_nested():
            session.execute(insert(Task).values(id=first.id, name="again", done=False))
        sys.exit("a second task of one id was taken")
    except IntegrityError:
        pass
    session.commit()
    assert session.get(Task, first.id).done
    session.delete(session.get(Task, 50))
    session.commit()
    assert session.scalar(select(func.count()).select_from(Task)) == 49

# Two sessions conflict: one of them must try again.
with engine.connect() as one, engine.connect() as two:
    for connection in (one, two):
        connection.execute(select(account.c.balance).where(account.c.id == 2))
        connection.execute(update(account).where(account.c.id == 2).values(balance=account.c.balance + 1))
    one.commit()
    try:
        two.commit()
        sys.exit("a lost update")
    except OperationalError as error:
        assert error.orig.sqlstate == "40001", error

# Unsupported statements are refused with a clear error.
child = Table("child", MetaData(), Column("id", Integer, ForeignKey(account.c.id)))
try:
    child.create(engine)
    sys.exit("a foreign key was taken")
except NotSupportedError as error:
    assert error.orig.sqlstate == "0A000", error

metadata.drop_all(engine)
assert inspect(engine).get_table_names() == ["task"]
