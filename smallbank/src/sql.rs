//! SmallBank in SQL: the same accounts, draws, transactions and books, through statements.
//!
//! Each transaction's statements are in its file. Tables are named `smallbank_savings` and `smallbank_checking`, so that they
//! do not collide with others in a database that is not ours.

use gannet_benchmarks::sql::{
    SqlConnection, SqlFailure, SqlRows, SqlValue, SqlWorkload, copy_data,
};
use gannet_benchmarks::{Check, Profile, Ran, Random, Totals};

use crate::verify::{Found, money};
use crate::{
    AMALGAMATE, Accounts, BALANCE, DEPOSIT_CHECKING, REFUSED, SEND_PAYMENT, SmallBank,
    TRANSACT_SAVINGS, amalgamate, balance, deposit_checking, draw_transaction, send_payment,
    transact_savings, write_check,
};

const TABLES: [&str; 2] = ["smallbank_savings", "smallbank_checking"];

/// C[a] += an amount.
pub(crate) const ADD_TO_CHECKING: &str =
    "UPDATE smallbank_checking SET balance = balance + $2 WHERE id = $1";
const SUM: &str = "SELECT s.balance + c.balance FROM smallbank_savings s \
                   JOIN smallbank_checking c ON c.id = s.id WHERE s.id = $1";

/// An account as a parameter.
pub(crate) fn id(account: u64) -> SqlValue {
    SqlValue::Integer(i64::try_from(account).expect("at most 2^36 accounts"))
}

/// An amount as a parameter.
pub(crate) fn value(cents: i64) -> SqlValue {
    SqlValue::Integer(cents)
}

/// S[a] + C[a].
pub(crate) async fn sum(connection: &mut impl SqlConnection, a: u64) -> Result<i64, SqlFailure> {
    let rows = connection.query(SUM, &[id(a)]).await?;
    one_row(rows.count() as u64)?;
    Ok(rows.integer(0, 0))
}

/// Accounts are never created or removed while transactions run, so a statement without a row fails the run.
pub(crate) fn one_row(count: u64) -> Result<(), SqlFailure> {
    if count == 1 {
        return Ok(());
    }
    let message = format!("a statement about one account found {count}");
    Err(SqlFailure { code: "21000".to_owned(), message })
}

impl SqlWorkload for SmallBank {
    fn profile(&self) -> Profile {
        Profile::of(self)
    }

    fn schema(&self) -> Vec<String> {
        let statements = TABLES.iter().flat_map(|table| {
            [
                format!("DROP TABLE IF EXISTS {table}"),
                format!("CREATE TABLE {table} (id bigint PRIMARY KEY, balance bigint NOT NULL)"),
            ]
        });
        statements.collect()
    }

    async fn load(&self, connection: &mut impl SqlConnection) -> Result<u64, SqlFailure> {
        let mut rows = 0;
        for table in TABLES {
            let line = |account| {
                let (savings, checking) = Accounts::initial(self.seed, account);
                let cents = if table == TABLES[0] { savings } else { checking };
                format!("{account}\t{cents}\n")
            };
            let copy = format!("COPY {table} FROM STDIN");
            rows += connection.copy(&copy, copy_data((0..self.accounts.count).map(line))).await?;
        }
        Ok(rows)
    }

    async fn run_one(
        &self,
        connection: &mut impl SqlConnection,
        random: &mut Random,
    ) -> Result<Ran, SqlFailure> {
        let transaction = draw_transaction(random);
        let (a, b) = self.accounts.draw(random);
        let mut tally = None;
        let outcome = match transaction {
            AMALGAMATE => amalgamate::run_sql(connection, a, b).await,
            BALANCE => balance::run_sql(connection, a).await,
            DEPOSIT_CHECKING => deposit_checking::run_sql(connection, a).await,
            SEND_PAYMENT => send_payment::run_sql(connection, a, b).await.map(|covered| {
                tally = (!covered).then_some(REFUSED);
            }),
            TRANSACT_SAVINGS => transact_savings::run_sql(connection, a).await,
            _ => write_check::run_sql(connection, a).await.map(|counts_as| tally = Some(counts_as)),
        };
        // A refused payment has found its rows, and commits the observation that the balance is too small.
        let ran = Ran::of(transaction, outcome.map(|()| true))?;
        Ok(Ran { tally, ..ran })
    }

    async fn verify(
        &self,
        connection: &mut impl SqlConnection,
        totals: &Totals,
    ) -> Result<Vec<Check>, SqlFailure> {
        let mut found = Found::default();
        for sql in [
            "SELECT count(*), coalesce(sum(balance), 0)::bigint FROM smallbank_savings",
            "SELECT count(*), coalesce(sum(balance), 0)::bigint FROM smallbank_checking",
        ] {
            let rows = connection.query(sql, &[]).await?;
            found.rows += i128::from(rows.integer(0, 0));
            found.cents += i128::from(rows.integer(0, 1));
        }
        Ok(money(found, self.accounts, self.seed, totals))
    }
}
