//! A parsed statement becomes a plan, or a command to the session.
//!
//! *Invariants*: every error that does not depend on data shows here. A statement that is neither is refused by its first
//! words. A plan keeps the catalog that it was made with, and its depth is bounded. A parameter whose type no place of
//! the statement tells is TEXT. The queries inside COPY, DECLARE and EXPLAIN are plans of their own.
//!
//! *Source*: PostgreSQL 15 documentation, part VI, SQL commands; `docs/sql.md`, "Refused".
//!
//! *Not here*: running plans (`execute`), and commands (`session/command`); each kind of plan has a file beside this one.

use std::rc::Rc;
use std::sync::Arc;

use gannet_syntax::copy_query;
use sqlparser::ast::{
    self, CloseCursor, CopyLegacyCsvOption, CopyLegacyOption, CopyOption, CopySource, CopyTarget,
    Expr, FetchDirection, Reset, Set, Statement, Value as Literal,
};

use crate::catalog::Catalog;
use crate::error::SqlError;
use crate::expression::Expression;
use crate::parser::{Maintenance, Parsed};
use crate::plan::administer::{Administration, administration};
use crate::plan::bind::{Binder, name_of, names_of};
use crate::plan::home::Home;
use crate::plan::scope::Scope;
use crate::plan::{Insert, Node, Plan, PlanKind, types};
use crate::session::{Column, CopyFormat, CopyOptions, Fetch};
use crate::value::{DataType, Value};

/// A planned statement.
#[derive(Debug, Clone)]
pub(crate) enum Prepared {
    /// A plan to run in a transaction.
    Plan(Arc<Plan>),
    /// A command to the session.
    Command(Arc<Command>),
}

/// A command to the session.
#[derive(Debug)]
pub(crate) enum Command {
    Begin,
    Commit,
    Rollback,
    Savepoint(String),
    RollbackTo(String),
    Release(String),
    Set {
        name: String,
        value: Option<String>,
    },
    Show(String),
    ShowTables,
    Prepare {
        name: String,
        types: Vec<DataType>,
        sql: String,
    },
    /// The arguments in SQL.
    Execute {
        name: String,
        arguments: Vec<Expression>,
    },
    /// The name; None for all.
    Deallocate(Option<String>),
    DiscardAll,
    ResetAll,
    CopyIn {
        insert: Arc<Plan>,
        columns: Vec<Column>,
        options: CopyOptions,
    },
    CopyOut {
        query: Arc<Plan>,
        options: CopyOptions,
    },
    Declare {
        name: String,
        query: Arc<Plan>,
        forward_only: bool,
    },
    Fetch {
        name: String,
        fetch: Fetch,
    },
    /// The name; None for all.
    Close(Option<String>),
    /// A statement without effect, such as VACUUM: its tag.
    Nothing(&'static str),
    /// What an operator does with the cluster.
    Administer(Administration),
}

/// Plans a statement.
///
/// # Errors
/// Every error that does not depend on data.
pub(crate) fn plan(
    parsed: &Parsed,
    sql: &str,
    catalog: &Arc<Catalog>,
    parameters: &[Option<DataType>],
) -> Result<Prepared, SqlError> {
    let mut binder = Binder::new(Arc::clone(catalog), sql, parameters.to_vec());
    let statement = match parsed {
        Parsed::Statement(statement) => statement,
        Parsed::Maintenance(Maintenance { tag, tables }) => {
            tables.iter().try_for_each(|table| binder.target(table).map(|_| ()))?;
            return Ok(Prepared::Command(Arc::new(Command::Nothing(tag))));
        }
    };
    if let Some(command) = command(&mut binder, statement)? {
        return Ok(Prepared::Command(Arc::new(command)));
    }
    let (kind, columns) = plan_kind(&mut binder, statement)?;
    finished(binder, kind, columns).map(|plan| Prepared::Plan(Arc::new(plan)))
}

fn finished(binder: Binder, kind: PlanKind, columns: Vec<Column>) -> Result<Plan, SqlError> {
    let (nodes, depth) = match &kind {
        PlanKind::Query(node) => (vec![node], 0),
        PlanKind::Insert(insert) => (vec![&insert.source], insert.depth()),
        PlanKind::Update(update) => {
            let assigned = update.assignments.iter().map(|(_, expression)| expression.depth());
            (vec![&update.source], assigned.max().unwrap_or(0))
        }
        PlanKind::Delete(delete) => (vec![&delete.source], 0),
        PlanKind::Define(_) | PlanKind::Explain { .. } => (Vec::new(), 0),
    };
    super::check_depth(depth)?;
    nodes.iter().try_for_each(|node| node.check_depth())?;
    let home = nodes.first().and_then(|node| Home::of(node));
    let parameters =
        binder.parameters.into_iter().map(|known| known.unwrap_or(DataType::Text)).collect();
    Ok(Plan { home, kind, columns: columns.into(), parameters, catalog: binder.catalog })
}

fn plan_kind(
    binder: &mut Binder,
    statement: &Statement,
) -> Result<(PlanKind, Vec<Column>), SqlError> {
    match statement {
        Statement::Query(query) => {
            let mut planned = binder.query(query)?;
            planned.show_relations(binder, query)?;
            Ok((PlanKind::Query(planned.node), planned.columns))
        }
        Statement::Insert(insert) => {
            let (insert, columns) = binder.insert(insert)?;
            Ok((PlanKind::Insert(Arc::new(insert)), columns))
        }
        Statement::Update(update) => {
            let (update, columns) = binder.update(update)?;
            Ok((PlanKind::Update(update), columns))
        }
        Statement::Delete(delete) => {
            let (delete, columns) = binder.delete(delete)?;
            Ok((PlanKind::Delete(delete), columns))
        }
        Statement::Explain { statement, analyze, options, format, .. } => {
            if format.is_some() {
                return Err(SqlError::unsupported("EXPLAIN (FORMAT ...)"));
            }
            let asked = options
                .iter()
                .flatten()
                .any(|option| option.name.value.eq_ignore_ascii_case("analyze"));
            let (kind, columns) = plan_kind(binder, statement)?;
            if matches!(kind, PlanKind::Define(_)) {
                return Err(SqlError::unsupported("EXPLAIN of a definition"));
            }
            let parameters = binder.parameters.clone();
            let inner = Binder::new(Arc::clone(&binder.catalog), "", parameters);
            let plan = Box::new(finished(inner, kind, columns)?);
            let column = Column { name: "QUERY PLAN".to_owned(), data_type: DataType::Text };
            Ok((PlanKind::Explain { plan, analyze: *analyze || asked }, vec![column]))
        }
        other => {
            let definition = match other {
                Statement::CreateTable(create) => binder.create_table(create)?,
                Statement::CreateIndex(create) => binder.create_index(create)?,
                Statement::AlterTable(alter) => binder.alter_table(alter)?,
                Statement::Truncate(truncate) => Binder::truncate(truncate)?,
                Statement::Drop { object_type, names, if_exists, .. } => {
                    Binder::drop(*object_type, names, *if_exists)?
                }
                _ => return Err(SqlError::unsupported(format_args!("{}", construct(other)))),
            };
            Ok((PlanKind::Define(definition), Vec::new()))
        }
    }
}

/// The first words of a statement, which tell its kind.
fn construct(statement: &Statement) -> String {
    let text = statement.to_string();
    let words: Vec<&str> = text.split_ascii_whitespace().take(2).collect();
    words.join(" ")
}

fn command(binder: &mut Binder, statement: &Statement) -> Result<Option<Command>, SqlError> {
    Ok(Some(match statement {
        Statement::StartTransaction { .. } => Command::Begin,
        Statement::Commit { chain: false, .. } => Command::Commit,
        Statement::Rollback { chain: false, savepoint: None } => Command::Rollback,
        Statement::Rollback { chain: false, savepoint: Some(name) } => {
            Command::RollbackTo(name_of(name))
        }
        Statement::Commit { .. } | Statement::Rollback { .. } => {
            return Err(SqlError::unsupported("AND CHAIN"));
        }
        Statement::Savepoint { name } => Command::Savepoint(name_of(name)),
        Statement::ReleaseSavepoint { name } => Command::Release(name_of(name)),
        Statement::Set(set) => set_command(set)?,
        Statement::Reset(reset) => match &reset.reset {
            Reset::ConfigurationParameter(name) => {
                Command::Set { name: names_of(name)?.join("."), value: None }
            }
            // There are no roles.
            Reset::SessionAuthorization => Command::Nothing("RESET"),
            Reset::ALL => Command::ResetAll,
        },
        Statement::ShowVariable { variable } => {
            let words: Vec<String> = variable.iter().map(name_of).collect();
            Command::Show(match words.join(" ").as_str() {
                "transaction isolation level" => "transaction_isolation".to_owned(),
                "time zone" => "timezone".to_owned(),
                _ => words.join("."),
            })
        }
        Statement::ShowTables { .. } => Command::ShowTables,
        Statement::Prepare { name, data_types, statement } => {
            let types: Result<Vec<DataType>, SqlError> =
                data_types.iter().map(types::from_written).collect();
            Command::Prepare { name: name_of(name), types: types?, sql: statement.to_string() }
        }
        Statement::Execute { name: Some(name), parameters, using, .. } if using.is_empty() => {
            let scope = Rc::new(Scope::default());
            let mut arguments = Vec::with_capacity(parameters.len());
            for parameter in parameters {
                let (expression, data_type) = binder.value(parameter, &scope)?;
                // The session parses the text in the parameter's type.
                let typed = super::bind::Typed::new(expression, data_type);
                arguments.push(binder.coerced(typed, DataType::Text, true)?);
            }
            Command::Execute { name: names_of(name)?.concat(), arguments }
        }
        Statement::Deallocate { name, .. } => match name_of(name) {
            name if name == "all" => Command::Deallocate(None),
            name => Command::Deallocate(Some(name)),
        },
        Statement::Discard { .. } => Command::DiscardAll,
        // LISTEN is refused, so there is nothing to end.
        Statement::UNLISTEN { .. } => Command::Nothing("UNLISTEN"),
        Statement::Declare { stmts } => declare(binder, stmts)?,
        Statement::Fetch { name, direction, into: None, .. } => {
            Command::Fetch { name: name_of(name), fetch: fetch(direction)? }
        }
        Statement::Close { cursor: CloseCursor::All } => Command::Close(None),
        Statement::Close { cursor: CloseCursor::Specific { name } } => {
            Command::Close(Some(name_of(name)))
        }
        Statement::Call(call) => Command::Administer(administration(call)?),
        Statement::Copy { source, to, target, options, legacy_options, .. } => {
            let options = copy_options(options, legacy_options)?;
            copy(binder, source, *to, target, options)?
        }
        _ => return Ok(None),
    }))
}

fn declare(binder: &mut Binder, declared: &[ast::Declare]) -> Result<Command, SqlError> {
    let [ast::Declare { names, for_query: Some(query), hold, scroll, .. }] = declared else {
        return Err(SqlError::unsupported("DECLARE of anything but a cursor"));
    };
    let [name] = names.as_slice() else {
        return Err(SqlError::unsupported("DECLARE of several names"));
    };
    if *hold == Some(true) {
        return Err(SqlError::unsupported("a cursor WITH HOLD"));
    }
    let (kind, columns) = plan_kind(binder, &Statement::Query(Box::new(copy_query(query))))?;
    let parameters = std::mem::take(&mut binder.parameters);
    let inner = Binder::new(Arc::clone(&binder.catalog), "", parameters);
    let query = Arc::new(finished(inner, kind, columns)?);
    Ok(Command::Declare { name: name_of(name), query, forward_only: *scroll == Some(false) })
}

fn fetch(direction: &FetchDirection) -> Result<Fetch, SqlError> {
    let count = |limit: &ast::ValueWithSpan| match &limit.value {
        Literal::Number(text, _) => text.parse().map_err(|_| {
            SqlError::new("22003", format!("the count {text} of FETCH is out of range"))
        }),
        other => Err(SqlError::unsupported(format_args!("FETCH {other}"))),
    };
    let or_one = |limit: &Option<ast::ValueWithSpan>| limit.as_ref().map_or(Ok(1), count);
    Ok(match direction {
        FetchDirection::Count { limit } => Fetch::Forward(count(limit)?),
        FetchDirection::Next => Fetch::Forward(1),
        FetchDirection::Prior => Fetch::Forward(-1),
        FetchDirection::First => Fetch::Absolute(1),
        FetchDirection::Last => Fetch::Absolute(-1),
        FetchDirection::Absolute { limit } => Fetch::Absolute(count(limit)?),
        FetchDirection::Relative { limit } => Fetch::Relative(count(limit)?),
        FetchDirection::All | FetchDirection::ForwardAll => Fetch::Forward(i64::MAX),
        FetchDirection::Forward { limit } => Fetch::Forward(or_one(limit)?),
        FetchDirection::Backward { limit } => Fetch::Forward(-or_one(limit)?),
        FetchDirection::BackwardAll => Fetch::Forward(-i64::MAX),
    })
}

fn set_command(set: &Set) -> Result<Command, SqlError> {
    Ok(match set {
        Set::SingleAssignment { variable, values, .. } => {
            let values: Vec<String> = values.iter().map(setting_text).collect();
            let value = values.join(", ");
            let value = (!value.eq_ignore_ascii_case("default")).then_some(value);
            Command::Set { name: names_of(variable)?.join("."), value }
        }
        Set::SetTimeZone { value, .. } => {
            Command::Set { name: "timezone".to_owned(), value: Some(setting_text(value)) }
        }
        Set::SetNames { charset_name, .. } => Command::Set {
            name: "client_encoding".to_owned(),
            value: Some(charset_name.value.clone()),
        },
        // Every transaction is strictly serializable, so the level has no effect.
        Set::SetTransaction { .. } => Command::Nothing("SET"),
        other => return Err(SqlError::unsupported(other)),
    })
}

fn setting_text(value: &Expr) -> String {
    match value {
        Expr::Value(value) => match &value.value {
            Literal::SingleQuotedString(text) => text.clone(),
            other => other.to_string(),
        },
        Expr::Identifier(ident) => ident.value.clone(),
        other => other.to_string(),
    }
}

fn copy_options(
    options: &[CopyOption],
    legacy: &[CopyLegacyOption],
) -> Result<CopyOptions, SqlError> {
    let csv = |name: &ast::Ident| match name_of(name).as_str() {
        "csv" => Ok(true),
        "text" => Ok(false),
        other => Err(SqlError::unsupported(format_args!("COPY format {other}"))),
    };
    let mut is_csv = false;
    for option in options {
        if let CopyOption::Format(name) = option {
            is_csv = csv(name)?;
        }
    }
    is_csv |= legacy.iter().any(|option| matches!(option, CopyLegacyOption::Csv(_)));
    let mut read = CopyOptions {
        format: if is_csv { CopyFormat::Csv } else { CopyFormat::Text },
        delimiter: if is_csv { b',' } else { b'\t' },
        null: if is_csv { String::new() } else { "\\N".to_owned() },
        header: false,
    };
    let delimiter = |character: char| {
        u8::try_from(character).ok().filter(u8::is_ascii).ok_or_else(|| {
            SqlError::new("0A000", "COPY delimiter must be a single one-byte character")
        })
    };
    for option in options {
        match option {
            CopyOption::Format(_) | CopyOption::Freeze(_) => {}
            CopyOption::Delimiter(character) => read.delimiter = delimiter(*character)?,
            CopyOption::Null(text) => read.null.clone_from(text),
            CopyOption::Header(header) => read.header = *header,
            CopyOption::Encoding(name) if name.replace('-', "").eq_ignore_ascii_case("utf8") => {}
            CopyOption::Quote('"') | CopyOption::Escape('"') => {}
            other => return Err(SqlError::unsupported(format_args!("COPY option {other}"))),
        }
    }
    for option in legacy {
        match option {
            CopyLegacyOption::Delimiter(character) => read.delimiter = delimiter(*character)?,
            CopyLegacyOption::Null(text) => read.null.clone_from(text),
            CopyLegacyOption::Header => read.header = true,
            CopyLegacyOption::Csv(options) => {
                for option in options {
                    match option {
                        CopyLegacyCsvOption::Header => read.header = true,
                        CopyLegacyCsvOption::Quote('"') | CopyLegacyCsvOption::Escape('"') => {}
                        other => {
                            let message = format_args!("COPY option {other}");
                            return Err(SqlError::unsupported(message));
                        }
                    }
                }
            }
            other => return Err(SqlError::unsupported(format_args!("COPY option {other}"))),
        }
    }
    Ok(read)
}

fn copy(
    binder: &mut Binder,
    source: &CopySource,
    to: bool,
    target: &CopyTarget,
    options: CopyOptions,
) -> Result<Command, SqlError> {
    match (to, target) {
        (true, CopyTarget::Stdout) | (false, CopyTarget::Stdin) => {}
        _ => {
            return Err(SqlError::unsupported(format_args!("COPY with {target}")).with_hint(
                "use STDIN or STDOUT; psql's \\copy and the shell read and write files",
            ));
        }
    }
    if to {
        let sql = match source {
            CopySource::Query(query) => query.to_string(),
            CopySource::Table { table_name, columns } => {
                let columns: Vec<String> = columns.iter().map(ToString::to_string).collect();
                let columns = if columns.is_empty() { "*".to_owned() } else { columns.join(", ") };
                format!("SELECT {columns} FROM {table_name}")
            }
        };
        let (kind, columns) = match crate::parser::parse(&sql)? {
            Some(Parsed::Statement(statement)) => plan_kind(binder, &statement)?,
            Some(Parsed::Maintenance(_)) | None => {
                return Err(SqlError::unsupported("COPY of a statement that gives no rows"));
            }
        };
        if columns.is_empty() {
            return Err(SqlError::unsupported("COPY of a statement that gives no rows"));
        }
        let inner = Binder::new(Arc::clone(&binder.catalog), "", Vec::new());
        let query = Arc::new(finished(inner, kind, columns)?);
        return Ok(Command::CopyOut { query, options });
    }
    let CopySource::Table { table_name, columns } = source else {
        return Err(SqlError::new("42601", "COPY FROM needs a table"));
    };
    let table = binder.target(table_name)?;
    let mut targets = Vec::with_capacity(columns.len());
    for column in columns {
        targets.push(table.require_column(&name_of(column))?);
    }
    if columns.is_empty() {
        targets = (0..table.columns.len()).collect();
    }
    let mut values = Vec::with_capacity(table.columns.len());
    for column in 0..table.columns.len() {
        values.push(match targets.iter().position(|target| *target == column) {
            Some(number) => Expression::Column(number),
            None => binder.default_value(&table, column)?,
        });
    }
    let column = |number: &usize| {
        let column = &table.columns[*number];
        Column { name: column.name.clone(), data_type: column.data_type }
    };
    let columns: Vec<Column> = targets.iter().map(column).collect();
    let rules = binder.rules(&table)?;
    let source = Node::Values(Vec::new());
    let insert = Insert::new(rules, source, values, None, None);
    let inner = Binder::new(Arc::clone(&binder.catalog), "", Vec::new());
    let insert = Arc::new(finished(inner, PlanKind::Insert(Arc::new(insert)), Vec::new())?);
    Ok(Command::CopyIn { insert, columns, options })
}

impl Insert {
    /// Levels of recursion of the expressions on its rows.
    fn depth(&self) -> usize {
        let updates = self.conflict.iter().filter_map(|conflict| conflict.update.as_ref());
        let updates = updates
            .flat_map(|update| update.assignments.iter().map(|(_, e)| e).chain(&update.condition));
        let checks = self.rules.checks.iter().map(|(_, condition)| condition);
        let all = self.values.iter().chain(updates).chain(checks);
        all.chain(self.returning.iter().flatten()).map(Expression::depth).max().unwrap_or(0)
    }
}

/// The value of a constant argument of EXECUTE.
pub(crate) fn constant(expression: &Expression) -> Result<Value, SqlError> {
    match expression {
        Expression::Constant(value) => Ok(value.clone()),
        _ => Err(SqlError::unsupported("an argument of EXECUTE that is no constant")),
    }
}
