//! From a parsed statement to a plan: names resolved, types known, access paths chosen.
//!
//! ```text
//! bind, operator, call   expressions            scope    columns that a name may denote
//! array, types           arrays, types          grouping expressions on groups
//! select, from, join     SELECT, joins          access   point, multi-point, range or full
//! query, window          set operations, rows   write    INSERT, UPDATE, DELETE
//! define, check          CREATE, ALTER, DROP    explain  a plan as text
//! statement              plan or command        home     the best node to run it
//! order                  scans in any order     syntax   searches and rewrites of what is parsed
//! ```
//!
//! *Invariants*: planning runs on a large stack (`parser`). A plan runs on a coroutine's small stack, so its
//! depth is at most [`DEPTH_MAX`]. Planning reads the catalog alone, no rows.
//!
//! *Not here*: parsing (`parser`), and running a plan (`execute`).

mod access;
pub(crate) mod administer;
mod array;
mod bind;
mod call;
mod check;
pub(crate) mod define;
pub(crate) mod explain;
mod from;
mod grouping;
mod home;
mod join;
mod operator;
mod order;
mod query;
mod scope;
mod select;
pub(crate) mod statement;
pub(crate) mod types;
mod window;
mod write;

use std::ops::Range;
use std::sync::Arc;

use crate::array::Element;
use crate::catalog::system::Relation;
use gannet_engine::TableId;

use crate::catalog::{Catalog, Table};
use crate::encoding::row::Wanted;
use crate::error::SqlError;
use crate::expression::Expression;
use crate::expression::aggregate::Aggregate;
use crate::fold::is_portable;
use crate::fold::partial::has_parts;
use crate::session::Column;
use crate::value::{DataType, Value};

use home::Home;
use order::ignores_order;
pub(crate) use order::is_steady;
pub(crate) use write::{Delete, Insert, OnConflict, RowRules, Update};

/// Levels of recursion that executing a plan may take: operators, expressions, subqueries.
///
/// A level of an expression counts as 1, an operator as 2, and a subquery as 8, in proportion to their shares of a
/// coroutine's stack of 256 KiB without optimisation.
pub(crate) const DEPTH_MAX: usize = 64;

/// A planned statement.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) kind: PlanKind,
    /// The columns of its result; none if it gives no rows.
    pub(crate) columns: Arc<[Column]>,
    /// The types of `$1`, `$2`, ...
    pub(crate) parameters: Vec<DataType>,
    /// The catalog that the plan was made with.
    pub(crate) catalog: Arc<Catalog>,
    /// The best node to run it; None if any will do.
    pub(crate) home: Option<Home>,
}

/// The kind of a statement, with its plan.
#[derive(Debug)]
pub(crate) enum PlanKind {
    Query(Node),
    Insert(Arc<Insert>),
    Update(Update),
    Delete(Delete),
    Define(define::Definition),
    Explain { plan: Box<Plan>, analyze: bool },
}

impl PlanKind {
    /// Whether it is a query that reserves rows.
    pub(crate) fn reserves(&self) -> bool {
        matches!(self, Self::Query(node) if node.reserves())
    }

    /// Whether the plan writes nothing except counters.
    pub(crate) fn only_reads(&self) -> bool {
        match self {
            Self::Query(_) => true,
            Self::Explain { plan, .. } => plan.kind.only_reads(),
            Self::Insert(_) | Self::Update(_) | Self::Delete(_) | Self::Define(_) => false,
        }
    }
}

/// A subquery of an expression.
#[derive(Debug, PartialEq)]
pub(crate) struct Subquery {
    pub(crate) node: Node,
    /// Levels of recursion that executing it takes.
    pub(crate) depth: usize,
}

/// A node of a query's plan, which gives rows.
#[derive(Debug, PartialEq)]
pub(crate) enum Node {
    /// Rows of expressions; `SELECT 1` is one row without columns.
    Values(Vec<Vec<Expression>>),
    Scan(Box<Scan>),
    /// The number of a scan's rows, from its index alone: one row.
    Count(Box<Scan>),
    System {
        relation: &'static Relation,
        filter: Option<Expression>,
    },
    /// `generate_series(first, last, step)`.
    Series([Expression; 3]),
    Filter {
        input: Box<Node>,
        condition: Expression,
    },
    Project {
        input: Box<Node>,
        expressions: Vec<Expression>,
    },
    /// For each row on the left, an access to a table on the right.
    Lookup {
        left: Box<Node>,
        scan: Box<Scan>,
        keep_left: bool,
        condition: Option<Expression>,
    },
    Join(Box<Join>),
    Aggregate {
        input: Box<Node>,
        keys: Vec<Expression>,
        aggregates: Vec<Aggregate>,
    },
    /// The same of all rows of a table, computed where the rows are.
    Fold(Box<Fold>),
    Sort {
        input: Box<Node>,
        keys: Vec<SortKey>,
        limit: Option<Expression>,
    },
    Limit {
        input: Box<Node>,
        limit: Option<Expression>,
        offset: Option<Expression>,
    },
    /// Rows numbered from 1 in each run of rows with the same values in some columns.
    RowNumber {
        input: Box<Node>,
        /// The column of the number.
        column: usize,
        partition: Vec<usize>,
    },
    /// Each row repeated for every element of its arrays; shorter arrays are filled up with NULL. Each array adds three
    /// columns: the element, its place from 1, and its subscript.
    Elements {
        input: Box<Node>,
        vectors: Vec<(Expression, Element)>,
    },
    /// The rows without duplicates in their first `columns` columns.
    Distinct {
        input: Box<Node>,
        columns: usize,
        /// Whether duplicates are adjacent.
        is_sorted: bool,
    },
    SetOperation {
        /// None is UNION ALL.
        operation: Option<SetOperation>,
        left: Box<Node>,
        right: Box<Node>,
    },
}

/// INTERSECT, EXCEPT and their ALL forms, which count equal rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetOperation {
    Intersect,
    IntersectAll,
    Except,
    ExceptAll,
}

/// Reads rows of a table.
#[derive(Debug, PartialEq)]
pub(crate) struct Scan {
    pub(crate) table: Arc<Table>,
    /// The table's name in the statement.
    pub(crate) alias: String,
    pub(crate) access: Access,
    /// Of a range whose order does not matter, a scan of all the table's rows that gives the same ones.
    pub(crate) whole: Option<Box<Self>>,
    /// A condition on the table's columns.
    pub(crate) filter: Option<Expression>,
    pub(crate) wanted: Wanted,
    /// Values of columns that are missing in rows written before the columns were added.
    pub(crate) missing: Vec<Value>,
    /// Whether rows end in a BYTEA column with their primary key.
    pub(crate) with_key: bool,
    /// Whether its rows are reserved.
    pub(crate) reserves: Option<Reserve>,
    /// Of a full scan, whether nobody sees the order of its rows.
    pub(crate) in_any_order: bool,
}

/// Groups and aggregates of a full scan, or of a range that may have a large part of the table's rows.
#[derive(Debug, PartialEq)]
pub(crate) struct Fold {
    pub(crate) scan: Scan,
    pub(crate) keys: Vec<Expression>,
    pub(crate) aggregates: Vec<Aggregate>,
    /// The keys in the rows of states that primaries send: their first columns.
    pub(crate) merged_keys: Vec<Expression>,
}

impl Fold {
    /// Whether the states of a scan's groups can be computed where the rows are.
    fn is_possible(scan: &Scan, keys: &[Expression], aggregates: &[Aggregate]) -> bool {
        let scan = scan.whole.as_deref().unwrap_or(scan);
        matches!(scan.access, Access::Full)
            && !scan.with_key
            && keys.iter().chain(&scan.filter).all(is_portable)
            && aggregates.iter().flat_map(Aggregate::expressions).all(is_portable)
            && aggregates.iter().all(|aggregate| has_parts(aggregate) && ignores_order(aggregate))
    }

    fn new(scan: Scan, keys: Vec<Expression>, aggregates: Vec<Aggregate>) -> Self {
        let merged_keys = (0..keys.len()).map(Expression::Column).collect();
        Self { scan, keys, aggregates, merged_keys }
    }
}

/// How a statement reserves the rows that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// UPDATE and DELETE: rows that are named by their keys. A statement on its own reserves any rows, when it has met a conflict.
    Change,
    /// FOR UPDATE: it waits for rows that others have reserved.
    Wait,
    /// FOR UPDATE NOWAIT: it ends with an error.
    NoWait,
    /// FOR UPDATE SKIP LOCKED: it passes over them.
    Skip,
}

/// The access to a table's rows.
///
/// The expressions are evaluated on the row on the left of a [`Node::Lookup`], and on an empty row otherwise.
#[derive(Debug, PartialEq)]
pub(crate) enum Access {
    /// Each key column has one of some values.
    Points {
        index: IndexChoice,
        columns: Vec<Vec<Expression>>,
    },
    Range(IndexRange),
    Full,
}

/// An index of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexChoice {
    Primary,
    /// Its number in [`Table::indexes`].
    Secondary(usize),
}

/// Entries of an index that begin with some values and lie between two bounds.
#[derive(Debug, PartialEq)]
pub(crate) struct IndexRange {
    pub(crate) index: IndexChoice,
    pub(crate) prefix: Vec<Expression>,
    /// The bound, and whether it is included.
    pub(crate) lower: Option<(Expression, bool)>,
    pub(crate) upper: Option<(Expression, bool)>,
    pub(crate) descending: bool,
}

/// Two inputs, of which the right one is kept in memory if it fits.
#[derive(Debug, PartialEq)]
pub(crate) struct Join {
    pub(crate) left: Node,
    pub(crate) right: Node,
    /// Pairs of expressions on the left and on the right row that must be equal; without any, all pairs are compared.
    pub(crate) keys: Vec<(Expression, Expression)>,
    /// A condition on the left row followed by the right one.
    pub(crate) condition: Option<Expression>,
    pub(crate) keep_left: bool,
    pub(crate) keep_right: bool,
    pub(crate) widths: [usize; 2],
}

/// A key of an order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SortKey {
    pub(crate) expression: Expression,
    pub(crate) descending: bool,
    pub(crate) nulls_first: bool,
}

impl SortKey {
    /// A column in ascending order.
    pub(crate) fn of(column: usize) -> Self {
        Self { expression: Expression::Column(column), descending: false, nulls_first: false }
    }
}

impl IndexChoice {
    /// The columns of the index's key.
    pub(crate) fn columns(self, table: &Table) -> &[usize] {
        match self {
            Self::Primary => table.primary_columns(),
            Self::Secondary(number) => &table.indexes[number].columns,
        }
    }

    /// The engine's table with the index.
    pub(crate) fn storage(self, table: &Table) -> TableId {
        match self {
            Self::Primary => table.rows(),
            Self::Secondary(number) => table.indexes[number].entries(),
        }
    }

    /// The index's name.
    pub(crate) fn name(self, table: &Table) -> &str {
        match self {
            Self::Primary => table.primary_key.as_ref().map_or("the row number", |key| &key.name),
            Self::Secondary(number) => &table.indexes[number].name,
        }
    }
}

impl Access {
    fn expressions(&self) -> Vec<&Expression> {
        match self {
            Self::Points { columns, .. } => columns.iter().flatten().collect(),
            Self::Range(range) => {
                let bounds = [&range.lower, &range.upper].into_iter().flatten();
                range.prefix.iter().chain(bounds.map(|(bound, _)| bound)).collect()
            }
            Self::Full => Vec::new(),
        }
    }
}

/// The inputs of a node, borrowed as the node is.
macro_rules! inputs {
    ($node:expr, $join:ident => $join_inputs:expr) => {
        match $node {
            Node::Values(_)
            | Node::Scan(_)
            | Node::Count(_)
            | Node::Fold(_)
            | Node::System { .. }
            | Node::Series(_) => Vec::new(),
            Node::Filter { input, .. }
            | Node::Project { input, .. }
            | Node::Aggregate { input, .. }
            | Node::Sort { input, .. }
            | Node::Limit { input, .. }
            | Node::RowNumber { input, .. }
            | Node::Elements { input, .. }
            | Node::Distinct { input, .. } => vec![input],
            Node::Lookup { left, .. } => vec![left],
            Node::Join($join) => $join_inputs,
            Node::SetOperation { left, right, .. } => vec![left, right],
        }
    };
}

impl Node {
    /// The inputs of the node.
    pub(crate) fn inputs(&self) -> Vec<&Self> {
        inputs!(self, join => vec![&join.left, &join.right])
    }

    fn inputs_mut(&mut self) -> Vec<&mut Self> {
        inputs!(self, join => vec![&mut join.left, &mut join.right])
    }

    /// Whether the node, or a subquery of its expressions, reads a table.
    fn reads(&self, table: &Table) -> bool {
        let own = match self {
            Self::Scan(scan) | Self::Count(scan) | Self::Lookup { scan, .. } => Some(&**scan),
            Self::Fold(fold) => Some(&fold.scan),
            _ => None,
        };
        let in_subquery = |part: &Expression| match part {
            Expression::Subquery(query) => query.subquery.node.reads(table),
            _ => false,
        };
        own.is_some_and(|scan| scan.table.id == table.id)
            || self.expressions().into_iter().any(|expression| expression.any(&in_subquery))
            || self.inputs().into_iter().any(|input| input.reads(table))
    }

    fn reserves(&self) -> bool {
        let own = match self {
            Self::Scan(scan) | Self::Lookup { scan, .. } => scan.reserves.is_some(),
            _ => false,
        };
        own || self.inputs().into_iter().any(Self::reserves)
    }

    /// Has the scans below reserve their rows, or only those of one table. Whether there was one.
    ///
    /// # Errors
    /// SQLSTATE 0A000 where rows of the result are not rows of tables.
    pub(crate) fn reserve(&mut self, how: Reserve, of: Option<&str>) -> Result<bool, SqlError> {
        let is_other = matches!(
            self,
            Self::Aggregate { .. }
                | Self::Count(_)
                | Self::Fold(_)
                | Self::Distinct { .. }
                | Self::SetOperation { .. }
        );
        if is_other && of.is_some() {
            return Ok(false);
        }
        if is_other {
            let message = "FOR UPDATE with DISTINCT, GROUP BY, aggregates or set operations";
            return Err(SqlError::unsupported(message)
                .with_hint("select the rows by their keys FOR UPDATE first"));
        }
        let mut is_there = false;
        if let Self::Scan(scan) | Self::Lookup { scan, .. } = self
            && of.is_none_or(|name| name == scan.alias)
        {
            scan.reserves = Some(how);
            is_there = true;
        }
        for input in self.inputs_mut() {
            is_there |= input.reserve(how, of)?;
        }
        Ok(is_there)
    }

    /// The node's own expressions.
    pub(crate) fn expressions(&self) -> Vec<&Expression> {
        match self {
            Self::Values(rows) => rows.iter().flatten().collect(),
            Self::Scan(scan) | Self::Count(scan) => {
                scan.access.expressions().into_iter().chain(&scan.filter).collect()
            }
            Self::System { filter, .. } => filter.iter().collect(),
            Self::Series(bounds) => bounds.iter().collect(),
            Self::Filter { condition, .. } => vec![condition],
            Self::Project { expressions, .. } => expressions.iter().collect(),
            Self::Lookup { scan, condition, .. } => {
                let own = scan.access.expressions().into_iter().chain(&scan.filter);
                own.chain(condition).collect()
            }
            Self::Join(join) => {
                let keys = join.keys.iter().flat_map(|(left, right)| [left, right]);
                keys.chain(&join.condition).collect()
            }
            Self::Aggregate { keys, aggregates, .. } => {
                let parts = aggregates.iter().flat_map(Aggregate::expressions);
                keys.iter().chain(parts).collect()
            }
            Self::Fold(fold) => {
                let parts = fold.aggregates.iter().flat_map(Aggregate::expressions);
                let access = fold.scan.access.expressions().into_iter();
                access.chain(&fold.scan.filter).chain(&fold.keys).chain(parts).collect()
            }
            Self::Sort { keys, limit, .. } => {
                keys.iter().map(|key| &key.expression).chain(limit).collect()
            }
            Self::Limit { limit, offset, .. } => limit.iter().chain(offset).collect(),
            Self::Elements { vectors, .. } => vectors.iter().map(|(vector, _)| vector).collect(),
            Self::RowNumber { .. } | Self::Distinct { .. } | Self::SetOperation { .. } => {
                Vec::new()
            }
        }
    }

    /// Levels of recursion that executing the node takes.
    pub(crate) fn depth(&self) -> usize {
        let expressions = self.expressions().into_iter().map(Expression::depth).max().unwrap_or(0);
        let inputs = self.inputs().into_iter().map(Self::depth).max().unwrap_or(0);
        2 + inputs.max(expressions)
    }

    /// Checks that a coroutine's stack suffices.
    ///
    /// # Errors
    /// SQLSTATE 54001.
    pub(crate) fn check_depth(&self) -> Result<(), SqlError> {
        check_depth(self.depth())
    }

    /// Whether the node gives at most one row.
    pub(crate) fn is_one_row(&self) -> bool {
        match self {
            Self::Values(rows) => rows.len() <= 1,
            Self::Aggregate { keys, .. } => keys.is_empty(),
            Self::Fold(fold) => fold.keys.is_empty(),
            Self::Count(_) => true,
            Self::Project { input, .. } | Self::Filter { input, .. } => input.is_one_row(),
            _ => false,
        }
    }
}

/// Checks that a coroutine's stack suffices for some levels of recursion.
///
/// # Errors
/// SQLSTATE 54001.
pub(crate) fn check_depth(depth: usize) -> Result<(), SqlError> {
    if depth <= DEPTH_MAX {
        return Ok(());
    }
    let message = format!("the statement is nested {depth} levels deep; the limit is {DEPTH_MAX}");
    Err(SqlError::new("54001", message).with_hint("split it into several statements"))
}

/// A range of column numbers.
type Columns = Range<usize>;
