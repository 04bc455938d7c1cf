//! Statements that load one table after each other: the first rows come by a bulk load, and those of later statements by transactions.
//!
//! A test fails if a row is missing, or there twice, or if one that is there already is taken.
//!
//! *Source*: `docs/protocol.md`, "Bulk loads".
//!
//! *Not here*: loads of one statement (`loads.rs`).

use std::ops::Range;

use pollster::block_on;

use crate::loads::{begin, copy, session};
use crate::{ok, rows};

fn ids(range: Range<i64>) -> String {
    range.map(|id| format!("{id}\n")).collect()
}

#[test]
fn statements_load_one_table_after_each_other() {
    let mut session = session();
    begin(&mut session, "id INT PRIMARY KEY, w TEXT DEFAULT repeat('x', 100)");
    // Batches of wide rows have few of them.
    block_on(session.copy_in(b"-1\twide")).expect("no error");
    for id in 0..30 {
        let wide = format!("{}\n{id}\twide", "x".repeat(100_000));
        block_on(session.copy_in(wide.as_bytes())).expect("no error");
    }
    block_on(session.copy_in(b"\n")).expect("no error");
    assert_eq!(block_on(session.copy_end(None)).expect("no error"), "COPY 31");
    for range in [30..12_000, 12_000..12_500, 12_500..25_000] {
        ok(&mut session, "COPY t (id) FROM STDIN");
        let count = range.end - range.start;
        assert_eq!(copy(&mut session, ids(range).as_bytes()), Ok(format!("COPY {count}")));
    }
    ok(&mut session, "INSERT INTO t (id) SELECT i FROM generate_series(25000, 29999) i");
    let sums = "SELECT count(*), sum(id), sum(length(w)) FROM t";
    let expected = format!("30001|{}|{}", 29_999 * 30_000 / 2 - 1, 30 * 100_004 + 4 + 29_970 * 100);
    assert_eq!(rows(&mut session, sums), [&*expected]);
    ok(&mut session, "COMMIT");
    assert_eq!(rows(&mut session, sums), [&*expected]);
    for last in [7, 12_345] {
        ok(&mut session, "BEGIN");
        ok(&mut session, "TRUNCATE t");
        ok(&mut session, "COPY t (id) FROM STDIN");
        let twice = ids(0..20_000) + &ids(last..last + 1);
        assert_eq!(copy(&mut session, twice.as_bytes()), Err("23505"));
        ok(&mut session, "ROLLBACK");
        assert_eq!(rows(&mut session, sums), [&*expected]);
    }
}
