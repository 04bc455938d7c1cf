"""asyncpg against a server: parameters, transactions, a pool."""

import asyncio
import datetime
import decimal
import sys

import asyncpg


async def main(port):
    where = {"host": "127.0.0.1", "port": port, "user": "tester", "database": "test"}
    connection = await asyncpg.connect(**where)
    assert connection.get_settings().client_encoding == "UTF8"
    await connection.execute(
        "CREATE TABLE fruit (id int PRIMARY KEY, name text, price numeric, day date)"
    )
    day = datetime.date(2024, 2, 29)
    rows = [(number, f"n{number}", decimal.Decimal("1.50"), day) for number in range(50)]
    await connection.executemany("INSERT INTO fruit VALUES ($1, $2, $3, $4)", rows)
    row = await connection.fetchrow("SELECT * FROM fruit WHERE id = $1", 7)
    assert tuple(row) == rows[7], row
    # asyncpg sends and reads all of them in binary.
    moment = datetime.datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=datetime.timezone.utc)
    await connection.execute("CREATE TABLE moment (at timestamptz PRIMARY KEY, since timestamptz DEFAULT now())")
    await connection.execute("INSERT INTO moment VALUES ($1)", moment)
    row = await connection.fetchrow("SELECT at, since, now() AS now FROM moment WHERE at = $1", moment)
    assert row["at"] == moment and row["since"] <= row["now"], row
    async with connection.transaction():
        await connection.execute("UPDATE fruit SET name = $1 WHERE id = 7", "é")
    assert await connection.fetchval("SELECT name FROM fruit WHERE id = 7") == "é"
    try:
        async with connection.transaction():
            await connection.execute("DELETE FROM fruit")
            raise KeyError
    except KeyError:
        pass
    assert await connection.fetchval("SELECT count(*) FROM fruit") == 50
    async with connection.transaction():
        numbers = [row["id"] async for row in connection.cursor("SELECT id FROM fruit ORDER BY id")]
    assert numbers == list(range(50))
    try:
        await connection.execute("INSERT INTO fruit VALUES (1)")
        raise AssertionError("a duplicate was taken")
    except asyncpg.UniqueViolationError:
        pass
    await connection.close()
    first = {"statement_timeout": "60s"}
    async with asyncpg.create_pool(min_size=1, max_size=1, server_settings=first, **where) as pool:
        for _ in range(3):
            async with pool.acquire() as pooled:
                # The settings of the previous connection are reset.
                assert await pooled.fetchval("SHOW statement_timeout") == "60s"
                await pooled.execute("SET statement_timeout = '70s'")
                assert await pooled.fetchval("SELECT count(*) FROM fruit") == 50


asyncio.run(main(int(sys.argv[1])))
