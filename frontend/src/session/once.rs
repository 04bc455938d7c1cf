//! Transactions under idempotency tokens: the setting `gannet.idempotency_token`.
//!
//! ```text
//! SET gannet.idempotency_token = 'client:sequence'
//!   ├─ BEGIN: the token is read ─┬─ nothing there: COMMIT writes it, with the tag COMMIT
//!   │                            └─ committed:    statements are refused, COMMIT answers the tag that is kept
//!   └─ a statement on its own that writes: read, run, written with its tag; or the tag that is kept, and nothing runs
//! ```
//! *Invariants*: a transaction uses its token up, however it ends: the setting is empty afterwards, so that no other transaction
//! is taken for it. A transaction that is committed under its token changes nothing when it is run again.
//!
//! *Not here*: the table of tokens, in the engine.

use std::sync::Arc;

use gannet_engine::{Abort, Conflict, Coordinator, Token};

use crate::error::{Failure, SqlError};
use crate::execute::{self, Beyond, Context, Output, Resources, Transaction, online};
use crate::plan::{Plan, PlanKind};
use crate::session::run::error_of;
use crate::session::{Session, TransactionStatus};
use crate::settings::{self, TOKEN};

/// The token of the open transaction.
pub(super) struct Once {
    token: Token,
    /// The command tag of an earlier run, which has committed.
    committed: Option<String>,
}

impl Session {
    /// The token that the settings name, if any.
    fn token(&self) -> Result<Option<Token>, SqlError> {
        match self.settings.get(TOKEN).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => settings::token(text).map(Some),
        }
    }

    /// The token for a statement on its own.
    ///
    /// # Errors
    /// SQLSTATE 0A000 for a statement that takes several transactions.
    pub(super) fn token_for(&self, plan: &Plan) -> Result<Option<Token>, SqlError> {
        if self.status != TransactionStatus::Idle || plan.kind.only_reads() {
            return Ok(None);
        }
        if builds_index(plan) {
            return self.refuse_token("a statement that builds an index").map(|()| None);
        }
        self.token()
    }

    /// Refuses what takes several transactions if it would be run under a token.
    ///
    /// # Errors
    /// SQLSTATE 0A000.
    pub(super) fn refuse_token(&self, what: &str) -> Result<(), SqlError> {
        if self.status != TransactionStatus::Idle || self.token()?.is_none() {
            return Ok(());
        }
        let hint = "run it between BEGIN and COMMIT, or RESET gannet.idempotency_token";
        Err(SqlError::unsupported(format_args!("{what} under an idempotency token"))
            .with_hint(hint))
    }

    /// The token is used up, if the plan was a transaction that it is for.
    pub(super) fn use_token(&mut self, plan: &Plan) {
        let is_alone = self.status == TransactionStatus::Idle;
        if is_alone && !plan.kind.only_reads() && !builds_index(plan) {
            self.forget_token();
        }
    }

    fn forget_token(&mut self) {
        if self.settings.get(TOKEN).is_some_and(|text| !text.is_empty()) {
            Arc::make_mut(&mut self.settings).insert(TOKEN.to_owned(), String::new());
        }
    }

    /// Begins a transaction, under the token that the settings name, if any.
    pub(super) async fn begin_transaction(&mut self) -> Result<(), SqlError> {
        let token = self.token();
        self.forget_token();
        let catalog = self.database.catalog();
        let mut transaction = Box::new(Transaction::seeing(Arc::clone(&catalog)).run_once());
        if let Some(token) = token? {
            let resources = self.resources(&catalog);
            let own = token.clone();
            let job = move |coordinator: &mut Coordinator<'_>, resources: &Resources| {
                let tokens = &resources.database.tokens;
                let read = tokens.read(&mut transaction.deferred, coordinator, &own);
                (transaction, read)
            };
            let (begun, read) = self.spawn(None, resources, job).await?;
            transaction = begun;
            let committed =
                read.map_err(|abort| error_of(abort.into()))?.map(|result| tag_of(&result));
            self.once = Some(Once { token, committed });
        }
        self.transaction = Some(transaction);
        self.status = TransactionStatus::InTransaction;
        Ok(())
    }

    /// Refuses statements of a transaction that has committed already.
    ///
    /// # Errors
    /// SQLSTATE 25000.
    pub(super) fn check_not_committed(&self) -> Result<(), SqlError> {
        let Some(Once { token, committed: Some(tag) }) = &self.once else { return Ok(()) };
        let message = format!("the transaction of token \"{token}\" has committed already: {tag}");
        Err(SqlError::new("25000", message)
            .with_hint("end it with COMMIT, which gives that result again"))
    }

    /// The tag of the open transaction's earlier run, if that has committed.
    pub(super) fn committed_tag(&self) -> Option<String> {
        self.once.as_ref()?.committed.clone()
    }

    /// The token that the open transaction's commit decides.
    pub(super) fn take_token(&mut self) -> Option<Token> {
        self.once.take().map(|once| once.token)
    }
}

/// Whether a statement on its own builds an index in several transactions.
fn builds_index(plan: &Plan) -> bool {
    matches!(&plan.kind, PlanKind::Define(definition) if online::applies_to(definition))
}

/// Commits a transaction of a session, and decides its token.
pub(super) fn commit(
    mut transaction: Box<Transaction>,
    token: Option<&Token>,
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<(), Abort> {
    // It is not run again, so it could not reserve the rows then.
    transaction.deferred.pass_readers();
    let result = commit_once(&mut transaction, token, coordinator, resources);
    transaction.reserved.release(coordinator);
    if let Err(Abort::Conflict(Conflict::Changed)) = result {
        let database = &resources.database;
        let used = resources.facts.catalog.tables().map(|table| table.rows());
        for table in used.filter(|table| resources.touched.has(*table)) {
            database.contended.note(table, coordinator.now_ns());
        }
    }
    if let (Ok(()), Some(_)) = (&result, token) {
        resources.database.tokens.sweep(coordinator);
    }
    result
}

fn commit_once(
    transaction: &mut Transaction,
    token: Option<&Token>,
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<(), Abort> {
    if let Some(token) = token {
        let tokens = &resources.database.tokens;
        tokens.write(&mut transaction.deferred, coordinator, token, b"COMMIT")?;
    }
    transaction.commit(coordinator, resources)
}

/// Runs a plan in a transaction of its own that decides a token; or gives what is kept under it.
pub(super) fn run(
    token: &Token,
    (plan, beyond): (&Plan, &Beyond),
    context: &mut Context<'_, '_>,
) -> Result<Output, Failure> {
    let resources = context.resources;
    let tokens = &resources.database.tokens;
    let deferred = &mut context.transaction.deferred;
    if let Some(result) = tokens.read(deferred, context.coordinator, token)? {
        // The rows of RETURNING are not kept.
        let rows = (!plan.columns.is_empty()).then(Vec::new);
        return Ok(Output { rows, tag: tag_of(&result), ..Output::default() });
    }
    let output = execute::run(plan, beyond, context)?;
    let deferred = &mut context.transaction.deferred;
    tokens.write(deferred, context.coordinator, token, output.tag.as_bytes())?;
    Ok(output)
}

/// A result as a command tag. A program beside the cluster may have chosen other bytes, and a tag has no zeros.
fn tag_of(result: &[u8]) -> String {
    String::from_utf8_lossy(result).replace('\0', "")
}
