//! COPY and INSERT ... SELECT into storages that no other transaction knows, whose rows the workers of a node share.
//!
//! The clusters have three nodes with one or two workers each, in this process. A statement may keep 4 MiB, less than
//! 50,000 rows take. A test fails if a row is missing or there twice, or if an error, a conflict or a rollback leaves a
//! row. COMMIT must end with 40001 if another transaction has changed the table or the source meanwhile; few rows must
//! leave the table to other transactions.
//!
//! *Source*: `docs/sql.md`, "Limits".
//!
//! *Not here*: nodes that are killed during a COPY (`lost.rs`).

use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, MemoryLimits, Session, TransactionStatus};
use pollster::block_on;

use crate::{code, ok, rows};

const ROWS: i64 = 50_000;
/// Workers of each node, and the columns of a table.
const KINDS: [(usize, &str); 4] = [
    (1, "id INT PRIMARY KEY, n INT"),
    (2, "id INT PRIMARY KEY, n INT"),
    (2, "id INT, n INT"),
    (2, "id INT, n INT UNIQUE"),
];

/// A session of a cluster whose nodes have several workers.
pub(crate) fn session() -> Session {
    database(2).session("tester")
}

/// A database whose statements keep fewer bytes than [`ROWS`] rows take.
fn database(threads: usize) -> Arc<Database> {
    let options = ClusterOptions {
        threads,
        memory_limit_bytes: Some(128 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).expect("a small cluster opens");
    let limits = MemoryLimits { statement_bytes: 4 << 20, ..MemoryLimits::default() };
    Database::open_within(cluster.into(), limits).expect("SQL opens on a fresh cluster")
}

/// Begins a transaction with a table for a COPY.
pub(crate) fn begin(session: &mut Session, columns: &str) {
    ok(session, "BEGIN");
    ok(session, &format!("CREATE TABLE t ({columns})"));
    ok(session, "COPY t FROM STDIN");
}

fn data(line: impl Fn(i64) -> String) -> Vec<u8> {
    (1..=ROWS).map(line).collect::<String>().into_bytes()
}

/// Sends data in pieces; the error of the COPY.
pub(crate) fn copy(session: &mut Session, data: &[u8]) -> Result<String, &'static str> {
    for chunk in data.chunks(10_000) {
        block_on(session.copy_in(chunk)).map_err(|error| error.code)?;
    }
    block_on(session.copy_end(None)).map_err(|error| error.code)
}

#[test]
fn all_rows_of_a_copy_are_there_once() {
    let mut session = session();
    for columns in ["id INT PRIMARY KEY, n INT", "id INT, n INT", "id INT, n INT UNIQUE"] {
        begin(&mut session, columns);
        assert_eq!(
            copy(&mut session, &data(|id| format!("{id}\t{}\n", 2 * id))),
            Ok(format!("COPY {ROWS}"))
        );
        let sums = "SELECT count(*), sum(id), sum(id::BIGINT * id), sum(n), max(n) FROM t";
        let sum = ROWS * (ROWS + 1) / 2;
        let squares = sum * (2 * ROWS + 1) / 3;
        let expected = format!("{ROWS}|{sum}|{squares}|{}|{}", 2 * sum, 2 * ROWS);
        assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
        ok(&mut session, "COMMIT");
        assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
        ok(&mut session, "DROP TABLE t");
    }
}

#[test]
fn rows_with_wide_defaults_take_no_more_memory_than_others() {
    let wide = "w TEXT DEFAULT repeat('x', 1000)";
    let wide_rows = 9_000;
    for threads in [1, 2] {
        let mut session = database(threads).session("tester");
        for key in ["id INT PRIMARY KEY", "id INT", "id INT UNIQUE"] {
            ok(&mut session, "BEGIN");
            ok(&mut session, &format!("CREATE TABLE t ({key}, {wide})"));
            ok(&mut session, "COPY t (id) FROM STDIN");
            let lines: String = (1..=wide_rows).map(|id| format!("{id}\n")).collect();
            let copied = copy(&mut session, lines.as_bytes());
            assert_eq!(copied, Ok(format!("COPY {wide_rows}")), "{key}");
            ok(&mut session, "TRUNCATE t");
            let series = format!("SELECT id FROM generate_series(1, {wide_rows}) id");
            ok(&mut session, &format!("INSERT INTO t (id) {series}"));
            let sums = rows(&mut session, "SELECT count(*), sum(length(w)) FROM t");
            assert_eq!(sums, [format!("{wide_rows}|{}", wide_rows * 1_000)], "{key}");
            ok(&mut session, "ROLLBACK");
        }
    }
}

/// Buckets are split while and after rows are loaded. The transaction sees each row once, however often it looks.
#[test]
fn rows_of_a_new_table_count_once_while_its_buckets_are_split() {
    // Of wide rows few are inserted together, and buckets are split late.
    let (loaded, sum) = (9_000, 9_000 * 9_001 / 2);
    let is_kept = |id: &i64| id % 50 == 7;
    for threads in [1, 2] {
        let mut session = database(threads).session("tester");
        for _ in 0..6 {
            ok(&mut session, "BEGIN");
            ok(&mut session, "CREATE TABLE t (id INT, w TEXT DEFAULT repeat('x', 1000))");
            let series = format!("SELECT n FROM generate_series(1, {loaded}) n");
            ok(&mut session, &format!("INSERT INTO t (id) {series}"));
            for _ in 0..2 {
                let sums = rows(&mut session, "SELECT count(id), sum(id) FROM t");
                assert_eq!(sums, [format!("{loaded}|{sum}")]);
                let passed = rows(&mut session, "SELECT id FROM t WHERE id % 50 = 7 ORDER BY id");
                let expected = (1..=loaded).filter(is_kept).map(|id| id.to_string());
                assert_eq!(passed, expected.collect::<Vec<_>>());
            }
            ok(&mut session, "COMMIT");
            ok(&mut session, "DROP TABLE t");
        }
    }
}

#[test]
fn an_error_of_a_copy_leaves_nothing() {
    let mut session = session();
    let all_twice = |id: i64| format!("{}\t1\n", id % (ROWS - 10));
    let one_is_negative = |id: i64| format!("{id}\t{}\n", if id == ROWS - 3 { -1 } else { 1 });
    let one_is_malformed = |id: i64| format!("{id}\t{}\n", if id == ROWS - 3 { "x" } else { "1" });
    let malformed_soon = |id: i64| match id {
        7_000 => "7000\t-1\n".to_owned(),
        13_000 => "x".to_owned(),
        id => format!("{id}\t1\n"),
    };
    // Of the first batch the last rows are inserted with the second.
    let one_comes_back = |id: i64| match id {
        8_100 => "1\t1\n".to_owned(),
        12_000 => "12000\t-1\n".to_owned(),
        id => format!("{id}\t1\n"),
    };
    let neither = |id: i64| format!("{id}\t1\n");
    let errors = [
        (data(all_twice), Err("23505")),
        (data(one_is_negative), Err("23514")),
        (data(one_is_malformed), Err("22P02")),
        // The error of rows that are being inserted, and not of those that are read meanwhile.
        (data(malformed_soon), Err("23514")),
        (data(one_comes_back), Err("23505")),
        (data(neither), Ok(format!("COPY {ROWS}"))),
    ];
    for (data, expected) in errors {
        begin(&mut session, "id INT PRIMARY KEY, n INT CHECK (n > 0)");
        assert_eq!(copy(&mut session, &data), expected);
        if expected.is_err() {
            assert_eq!(code(&mut session, "SELECT 1"), "25P02");
        }
        ok(&mut session, "ROLLBACK");
        assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
    }
    // The client gives up while workers insert.
    begin(&mut session, "id INT");
    block_on(session.copy_in(&data(|id| format!("{id}\n")))).expect("no error");
    let abandoned = block_on(session.copy_end(Some("enough".to_owned()))).unwrap_err();
    assert_eq!(abandoned.code, "57014");
    ok(&mut session, "ROLLBACK");
    assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
    // The program forgets to end the COPY.
    begin(&mut session, "id INT");
    block_on(session.copy_in(&data(|id| format!("{id}\n")))).expect("no error");
    assert_eq!(code(&mut session, "SELECT 1"), "25P02");
    assert_eq!(session.status(), TransactionStatus::Failed);
    ok(&mut session, "COMMIT");
    assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
}

/// A load ends when no rows come for a while, and another one takes those that come afterwards.
#[test]
fn a_copy_goes_on_when_its_client_has_paused() {
    let mut session = session();
    begin(&mut session, "id INT PRIMARY KEY");
    for part in 0..4 {
        let rows: String = (1..=12_000).map(|id| format!("{}\n", 12_000 * part + id)).collect();
        block_on(session.copy_in(rows.as_bytes())).expect("no error");
        std::thread::park_timeout(Duration::from_millis(30));
    }
    assert_eq!(block_on(session.copy_end(None)).expect("no error"), "COPY 48000");
    ok(&mut session, "COMMIT");
    let sums = rows(&mut session, "SELECT count(*), sum(id) FROM t");
    assert_eq!(sums, [format!("48000|{}", 48_000_i64 * 48_001 / 2)]);
    ok(&mut session, "DROP TABLE t");
    // An error of rows before the pause is told with the next ones.
    begin(&mut session, "id INT CHECK (id > 0)");
    let ids = |from: i64| (from..from + 12_000).map(|id| format!("{id}\n")).collect::<String>();
    block_on(session.copy_in(ids(0).as_bytes())).expect("a load has begun");
    std::thread::park_timeout(Duration::from_millis(30));
    let next = block_on(session.copy_in(ids(12_000).as_bytes()));
    let ended = next.map(|_| block_on(session.copy_end(None)));
    assert_eq!(ended.map_or_else(|error| error.code, |end| end.unwrap_err().code), "23514");
    ok(&mut session, "ROLLBACK");
}

/// Rows from before a column was added lack its value, and are written to the new storage as they are.
#[test]
fn a_primary_key_is_added_to_rows_that_lack_a_column() {
    let mut session = session();
    for sql in [
        "CREATE TABLE t (a INT, s TEXT)",
        "INSERT INTO t VALUES (1, 'old'), (2, NULL)",
        "ALTER TABLE t ADD COLUMN b INT DEFAULT 7",
        "INSERT INTO t VALUES (1, 'new', 8)",
        "ALTER TABLE t ADD PRIMARY KEY (b, a)",
        "INSERT INTO t VALUES (0, 'newest', 9)",
        "UPDATE t SET s = 'updated' WHERE a = 2 AND b = 7",
    ] {
        ok(&mut session, sql);
    }
    let all = rows(&mut session, "SELECT b, a, s FROM t ORDER BY b, a");
    assert_eq!(all, ["7|1|old", "7|2|updated", "8|1|new", "9|0|newest"]);
    assert_eq!(rows(&mut session, "SELECT s FROM t WHERE b = 7 AND a = 1"), ["old"]);
    assert_eq!(code(&mut session, "INSERT INTO t VALUES (1, 'twice', 7)"), "23505");
}

#[test]
fn no_rows_are_reported_that_a_transaction_takes_back() {
    let mut session = session();
    ok(&mut session, "CREATE TABLE t (id INT)");
    for is_inside in [false, true] {
        if is_inside {
            ok(&mut session, "BEGIN");
        }
        ok(&mut session, "COPY t FROM STDIN");
        let rows =
            (1..=2_500).map(|id| if id == 2_400 { "x\n".to_owned() } else { format!("{id}\n") });
        let data = rows.collect::<String>();
        let error =
            data.as_bytes().chunks(1_000).find_map(|chunk| block_on(session.copy_in(chunk)).err());
        let error = error.expect("a row is malformed");
        assert_eq!((error.code, error.hint.is_none()), ("22P02", is_inside), "{error:?}");
        if is_inside {
            ok(&mut session, "ROLLBACK");
        }
    }
}

#[test]
fn all_rows_of_a_query_are_inserted_once() {
    for threads in [1, 2] {
        let mut session = database(threads).session("tester");
        ok(&mut session, "CREATE TABLE source (id INT PRIMARY KEY, n INT)");
        ok(&mut session, "COPY source FROM STDIN");
        let all = copy(&mut session, &data(|id| format!("{id}\t{}\n", 2 * id)));
        assert_eq!(all, Ok(format!("COPY {ROWS}")));
        for columns in ["id INT PRIMARY KEY, n INT", "id INT, n INT", "id INT, n INT UNIQUE"] {
            ok(&mut session, "BEGIN");
            ok(&mut session, &format!("CREATE TABLE t ({columns})"));
            ok(&mut session, "INSERT INTO t SELECT id, n FROM source");
            let sums = "SELECT count(*), sum(id), sum(id::BIGINT * id), sum(n), max(n) FROM t";
            let sum = ROWS * (ROWS + 1) / 2;
            let squares = sum * (2 * ROWS + 1) / 3;
            let expected = format!("{ROWS}|{sum}|{squares}|{}|{}", 2 * sum, 2 * ROWS);
            assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
            ok(&mut session, "COMMIT");
            ok(&mut session, "BEGIN");
            ok(&mut session, "TRUNCATE t");
            let tag = ok(&mut session, "INSERT INTO t SELECT n - id, n FROM source");
            assert!(format!("{tag:?}").contains(&format!("INSERT 0 {ROWS}")), "{tag:?}");
            ok(&mut session, "COMMIT");
            assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
            ok(&mut session, "DROP TABLE t");
        }
    }
}

/// Queries of which one of the last rows cannot be inserted into a table with numbers above 0, and the SQLSTATEs.
fn failing() -> [(String, &'static str); 3] {
    let last = ROWS - 3;
    [
        (format!("SELECT id % {last}, 1 FROM generate_series(1, {ROWS}) id"), "23505"),
        (format!("SELECT id, {last} - id FROM generate_series(1, {ROWS}) id"), "23514"),
        (format!("SELECT id, {ROWS} / ({last} - id) FROM generate_series(1, {last}) id"), "22012"),
    ]
}

#[test]
fn an_error_of_a_query_that_is_inserted_leaves_nothing() {
    let mut session = session();
    for (source, expected) in failing() {
        ok(&mut session, "BEGIN");
        ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT CHECK (n > 0))");
        assert_eq!(code(&mut session, &format!("INSERT INTO t {source}")), expected);
        assert_eq!(code(&mut session, "SELECT 1"), "25P02");
        ok(&mut session, "COMMIT");
        assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
    }
}

#[test]
fn a_query_does_not_see_the_rows_that_it_inserts() {
    let mut session = session();
    let half = 3_000;
    let series = format!("SELECT id FROM generate_series(1, {}) id", 2 * half);
    let queries = [
        format!("{series} WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.id = id - {half})"),
        format!("{series} LEFT JOIN public.T AS own USING (id) WHERE own.id IS NULL"),
        format!(
            "WITH own AS (SELECT * FROM t) {series} WHERE id - {half} NOT IN (SELECT id FROM own)"
        ),
    ];
    for query in queries {
        ok(&mut session, "BEGIN");
        ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY)");
        ok(&mut session, &format!("INSERT INTO t {query}"));
        ok(&mut session, &format!("INSERT INTO t SELECT {} + id FROM t", 2 * half));
        ok(&mut session, "COMMIT");
        let counts = rows(&mut session, "SELECT count(*), min(id), max(id) FROM t");
        assert_eq!(counts, [format!("{}|1|{}", 4 * half, 4 * half)], "{query}");
        ok(&mut session, "DROP TABLE t");
    }
}

#[test]
fn rows_that_change_before_the_commit_of_their_copies_are_a_conflict() {
    let database = database(2);
    let (mut session, mut other) = (database.session("tester"), database.session("other"));
    ok(&mut session, "CREATE TABLE source (id INT PRIMARY KEY, n INT)");
    ok(&mut session, "INSERT INTO source SELECT id, id FROM generate_series(1, 5000) id");
    for changes in [false, true] {
        ok(&mut session, "BEGIN");
        ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT)");
        ok(&mut session, "INSERT INTO t SELECT id, n FROM source");
        if changes {
            ok(&mut other, "UPDATE source SET n = 0 WHERE id = 77");
            assert_eq!(code(&mut session, "COMMIT"), "40001");
            assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
        } else {
            ok(&mut session, "COMMIT");
            let sums = rows(&mut session, "SELECT count(*), sum(n) FROM t");
            assert_eq!(sums, [format!("5000|{}", 5_000 * 5_001 / 2)]);
            ok(&mut session, "DROP TABLE t");
        }
    }
}

#[test]
fn a_table_takes_any_number_of_rows() {
    for (threads, columns) in KINDS {
        let mut session = database(threads).session("tester");
        ok(&mut session, &format!("CREATE TABLE t ({columns})"));
        // Rows were there, and are gone.
        ok(&mut session, "INSERT INTO t SELECT id, id FROM generate_series(1, 5000) id");
        ok(&mut session, "DELETE FROM t");
        let series = format!("SELECT id, 2 * id FROM generate_series(1, {ROWS}) id");
        let tag = ok(&mut session, &format!("INSERT INTO t {series}"));
        assert!(format!("{tag:?}").contains(&format!("INSERT 0 {ROWS}")), "{tag:?}");
        let sums = "SELECT count(*), sum(id), sum(n) FROM t";
        let sum = ROWS * (ROWS + 1) / 2;
        let expected = format!("{ROWS}|{sum}|{}", 2 * sum);
        assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
        // So does a table with rows, also of a query that reads them.
        let more = format!("INSERT INTO t SELECT -id, -n FROM ({series}) AS more (id, n)");
        ok(&mut session, &more);
        assert_eq!(rows(&mut session, sums), [format!("{}|0|0", 2 * ROWS)], "{columns}");
        let tag = ok(&mut session, "INSERT INTO t SELECT id + 200000, n + 400000 FROM t");
        assert!(format!("{tag:?}").contains(&format!("INSERT 0 {}", 2 * ROWS)), "{tag:?}");
        let sum = 2 * ROWS * 200_000;
        let doubled = format!("{}|{sum}|{}", 4 * ROWS, 2 * sum);
        assert_eq!(rows(&mut session, sums), [&*doubled], "{columns}");
        let by_index = "SELECT count(*) FROM t WHERE n BETWEEN -10 AND 10";
        assert_eq!(rows(&mut session, by_index), ["10"], "{columns}");
        // In a transaction, too, which can be rolled back.
        ok(&mut session, "TRUNCATE t");
        for end in ["ROLLBACK", "COMMIT"] {
            ok(&mut session, "BEGIN");
            ok(&mut session, &format!("INSERT INTO t {series}"));
            assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
            ok(&mut session, end);
            let after = if end == "COMMIT" { &*expected } else { "0|NULL|NULL" };
            assert_eq!(rows(&mut session, sums), [after], "{columns}");
        }
    }
}

#[test]
fn a_copy_inside_a_transaction_takes_any_number_of_rows() {
    let sums = "SELECT count(*), sum(id), sum(n) FROM t";
    let sum = ROWS * (ROWS + 1) / 2;
    let positive = data(|id| format!("{id}\t{}\n", 2 * id));
    let negative = data(|id| format!("{}\t{}\n", -id, -2 * id));
    for (threads, columns) in KINDS {
        let mut session = database(threads).session("tester");
        ok(&mut session, &format!("CREATE TABLE t ({columns})"));
        ok(&mut session, "INSERT INTO t SELECT id, id FROM generate_series(1, 5000) id");
        ok(&mut session, "DELETE FROM t");
        let mut copied = |data: &[u8], end: &str, inside: &str, after: &str| {
            ok(&mut session, "BEGIN");
            ok(&mut session, "COPY t FROM STDIN");
            assert_eq!(copy(&mut session, data), Ok(format!("COPY {ROWS}")), "{columns}");
            assert_eq!(rows(&mut session, sums), [inside], "{columns}");
            ok(&mut session, end);
            assert_eq!(rows(&mut session, sums), [after], "{columns}");
        };
        let once = format!("{ROWS}|{sum}|{}", 2 * sum);
        let both = format!("{}|0|0", 2 * ROWS);
        copied(&positive, "ROLLBACK", &once, "0|NULL|NULL");
        copied(&positive, "COMMIT", &once, &once);
        // The table has rows now.
        copied(&negative, "ROLLBACK", &both, &once);
        copied(&negative, "COMMIT", &both, &both);
        let by_index = "SELECT count(*) FROM t WHERE n BETWEEN -10 AND 10";
        assert_eq!(rows(&mut session, by_index), ["10"], "{columns}");
    }
}

/// Fewer than are read at once do not fit into the statement's memory.
#[test]
fn long_rows_are_loaded_before_they_are_many() {
    let mut session = session();
    let (count, bytes) = (300, 20_000);
    let text = "x".repeat(bytes);
    let lines: String = (1..=count).map(|id| format!("{id}\t{text}\n")).collect();
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, text TEXT)");
    ok(&mut session, "BEGIN");
    ok(&mut session, "COPY t FROM STDIN");
    assert_eq!(copy(&mut session, lines.as_bytes()), Ok(format!("COPY {count}")));
    ok(&mut session, "COMMIT");
    ok(&mut session, "CREATE TABLE copy (id INT PRIMARY KEY, text TEXT)");
    ok(&mut session, "INSERT INTO copy SELECT * FROM t");
    ok(&mut session, "INSERT INTO t SELECT -id, text FROM copy");
    let sums = rows(&mut session, "SELECT count(*), sum(length(text)) FROM t");
    assert_eq!(sums, [format!("{}|{}", 2 * count, 2 * count * bytes)]);
}

#[test]
fn an_error_of_a_copy_inside_a_transaction_leaves_the_table_as_it_was() {
    let mut session = session();
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT CHECK (n > 0))");
    for there in [0, 5_000] {
        ok(
            &mut session,
            &format!("INSERT INTO t SELECT -id, 1 FROM generate_series(1, {there}) id"),
        );
        // The first one comes while rows wait for the table to get new storages.
        for (last, line, expected) in [
            (3_000, "x\t1\n", "22P02"),
            (3_000, "7\t1\n", "23505"),
            (ROWS, "7\t1\n", "23505"),
            (ROWS, "0\t0\n", "23514"),
        ] {
            let lines = (1..=last).map(|id| format!("{id}\t1\n")).collect::<String>() + line;
            ok(&mut session, "BEGIN");
            ok(&mut session, "COPY t FROM STDIN");
            assert_eq!(copy(&mut session, lines.as_bytes()), Err(expected));
            assert_eq!(code(&mut session, "SELECT 1"), "25P02");
            ok(&mut session, "COMMIT");
            assert_eq!(rows(&mut session, "SELECT count(*) FROM t"), [there.to_string()]);
        }
    }
    // The program forgets to end the COPY while rows wait.
    ok(&mut session, "BEGIN");
    ok(&mut session, "COPY t FROM STDIN");
    block_on(session.copy_in(b"1\t1\n")).expect("no error");
    ok(&mut session, "INSERT INTO t VALUES (2, 1)");
    ok(&mut session, "COMMIT");
    assert_eq!(rows(&mut session, "SELECT count(*), max(id) FROM t"), ["5001|2"]);
}

#[test]
fn few_rows_of_a_copy_leave_the_table_to_others() {
    let database = database(2);
    let (mut session, mut other) = (database.session("tester"), database.session("other"));
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT)");
    for first in [1, 5_001] {
        let lines = |from: i64, count: i64| {
            (from..from + count).map(|id| format!("{id}\t1\n")).collect::<String>()
        };
        ok(&mut other, "BEGIN");
        ok(&mut other, &format!("INSERT INTO t VALUES (-{first}, 1)"));
        ok(&mut session, "BEGIN");
        ok(&mut session, "COPY t FROM STDIN");
        assert_eq!(copy(&mut session, lines(first, 2_500).as_bytes()), Ok("COPY 2500".to_owned()));
        // What the transaction has written stays there.
        ok(&mut session, "COPY t FROM STDIN");
        let more = lines(first + 2_500, 2_500);
        assert_eq!(copy(&mut session, more.as_bytes()), Ok("COPY 2500".to_owned()));
        ok(&mut session, "SAVEPOINT s");
        ok(&mut session, "COPY t FROM STDIN");
        let more = lines(90_000, 2_500);
        assert_eq!(copy(&mut session, more.as_bytes()), Ok("COPY 2500".to_owned()));
        ok(&mut session, "ROLLBACK TO s");
        ok(&mut session, "COMMIT");
        ok(&mut other, "COMMIT");
        let counts = rows(&mut session, "SELECT count(*), max(id) FROM t");
        assert_eq!(
            counts,
            [format!("{}|{}", first + 4_999 + (first + 4_999) / 5_000, first + 4_999)]
        );
    }
}

#[test]
fn an_error_of_rows_for_an_empty_table_leaves_it_empty() {
    let mut session = session();
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT CHECK (n > 0))");
    for (source, expected) in failing() {
        assert_eq!(code(&mut session, &format!("INSERT INTO t {source}")), expected);
        assert_eq!(rows(&mut session, "SELECT count(*) FROM t"), ["0"]);
    }
    ok(&mut session, "INSERT INTO t VALUES (1, 1)");
    assert_eq!(rows(&mut session, "SELECT * FROM t"), ["1|1"]);
}

#[test]
fn an_error_of_rows_for_a_table_with_rows_leaves_it_as_it_was() {
    let mut session = session();
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT CHECK (n > 0), m INT)");
    ok(&mut session, "INSERT INTO t SELECT id, 1, id FROM generate_series(1, 5000) id");
    ok(&mut session, "ALTER TABLE t ADD COLUMN added INT DEFAULT 7");
    let sums = "SELECT count(*), sum(id), sum(added) FROM t";
    let expected = format!("5000|{}|35000", 5_000 * 5_001 / 2);
    for (source, expected_code) in failing() {
        let source = format!("SELECT 9000 + id, n FROM ({source}) AS failing (id, n)");
        assert_eq!(code(&mut session, &format!("INSERT INTO t (id, n) {source}")), expected_code);
        assert_eq!(rows(&mut session, sums), [&*expected], "{source}");
    }
    // One of the rows is there already.
    let more = |first: i64| {
        let last = first + ROWS - 1;
        format!("INSERT INTO t (id, n) SELECT id, 1 FROM generate_series({first}, {last}) id")
    };
    assert_eq!(code(&mut session, &more(5_000)), "23505");
    assert_eq!(rows(&mut session, sums), [&*expected]);
    ok(&mut session, &more(5_001));
    let (all, missing) = (5_000 + ROWS, "SELECT count(*) FROM t WHERE m IS NULL");
    assert_eq!(rows(&mut session, sums), [format!("{all}|{}|{}", all * (all + 1) / 2, 7 * all)]);
    assert_eq!(rows(&mut session, missing), [ROWS.to_string()]);
}

#[test]
fn a_table_with_rows_that_others_use_meanwhile_is_a_conflict() {
    let database = database(2);
    let (mut session, mut other) = (database.session("tester"), database.session("other"));
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT)");
    ok(&mut session, "INSERT INTO t SELECT id, 0 FROM generate_series(1, 5000) id");
    let load = format!("INSERT INTO t SELECT 9000 + id, 0 FROM generate_series(1, {ROWS}) id");
    let counts = "SELECT count(*), sum(n) FROM t";
    for change in ["UPDATE t SET n = 1 WHERE id = 77", "INSERT INTO t VALUES (0, 1)"] {
        ok(&mut session, "BEGIN");
        ok(&mut session, &load);
        ok(&mut other, change);
        assert_eq!(code(&mut session, "COMMIT"), "40001", "{change}");
    }
    assert_eq!(rows(&mut session, counts), ["5001|2"]);
    // Another one has written its row, and commits later.
    ok(&mut session, "BEGIN");
    ok(&mut session, &load);
    ok(&mut other, "BEGIN");
    ok(&mut other, "UPDATE t SET n = 5 WHERE id = 78");
    ok(&mut session, "COMMIT");
    assert_eq!(code(&mut other, "COMMIT"), "40001");
    assert_eq!(rows(&mut session, counts), [format!("{}|2", ROWS + 5_001)]);
    // Few rows, beside those that are there, leave the table to others.
    ok(&mut other, "BEGIN");
    ok(&mut other, "UPDATE t SET n = 5 WHERE id = 78");
    ok(&mut session, "INSERT INTO t SELECT -id, 0 FROM generate_series(1, 6500) id");
    ok(&mut other, "COMMIT");
    assert_eq!(rows(&mut session, counts), [format!("{}|7", ROWS + 11_501)]);
}

#[test]
fn an_empty_table_that_others_use_meanwhile_is_a_conflict() {
    let database = database(2);
    let (mut session, mut other) = (database.session("tester"), database.session("other"));
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT)");
    let load = format!("INSERT INTO t SELECT id, 0 FROM generate_series(1, {ROWS}) id");
    // Another transaction commits first: its row is not lost.
    ok(&mut session, "BEGIN");
    ok(&mut session, &load);
    ok(&mut other, "INSERT INTO t VALUES (0, 1)");
    assert_eq!(code(&mut session, "COMMIT"), "40001");
    assert_eq!(rows(&mut session, "SELECT * FROM t"), ["0|1"]);
    ok(&mut session, "DELETE FROM t");
    // Another one has written its row, and commits later: the row goes into no table that is gone.
    ok(&mut session, "BEGIN");
    ok(&mut session, &load);
    ok(&mut other, "BEGIN");
    ok(&mut other, "INSERT INTO t VALUES (0, 1)");
    ok(&mut session, "COMMIT");
    assert_eq!(code(&mut other, "COMMIT"), "40001");
    ok(&mut other, "INSERT INTO t VALUES (0, 1)");
    let counts = rows(&mut session, "SELECT count(*), sum(n) FROM t");
    assert_eq!(counts, [format!("{}|1", ROWS + 1)]);
}

/// What an attempt has loaded whose commit failed is not there beside the rows of the next one.
#[test]
fn rows_are_loaded_again_after_a_conflict() {
    let database = database(2);
    let (mut session, mut other) = (database.session("tester"), database.session("other"));
    ok(&mut session, "CREATE TABLE source (id INT PRIMARY KEY, n INT)");
    ok(&mut session, "CREATE TABLE t (id INT, n INT)");
    ok(
        &mut session,
        &format!("INSERT INTO source SELECT id, 0 FROM generate_series(1, {ROWS}) id"),
    );
    // They end while the rows are loaded, or before they are loaded again.
    let updates = 500;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=updates {
                ok(&mut other, &format!("UPDATE source SET n = {n} WHERE id = 77"));
            }
        });
        ok(&mut session, "INSERT INTO t SELECT id, n FROM source");
    });
    let counts = "SELECT count(*), sum(id), sum(n) > 0 FROM t";
    let (count, sum) = (ROWS, ROWS * (ROWS + 1) / 2);
    assert_eq!(rows(&mut session, counts), [format!("{count}|{sum}|t")]);
    // Into a table with rows, too, of which one changes meanwhile.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=updates {
                ok(&mut other, &format!("UPDATE t SET n = {n} WHERE id = 78"));
            }
        });
        ok(&mut session, "INSERT INTO t SELECT id, n FROM source");
    });
    assert_eq!(rows(&mut session, counts), [format!("{}|{}|t", 2 * count, 2 * sum)]);
    let last = format!("SELECT count(*) FROM t WHERE n = {updates} AND id = 78");
    assert!(["1", "2"].contains(&&*rows(&mut session, &last)[0]));
}
