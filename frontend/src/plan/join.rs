//! The order and the methods of joins.
//!
//! Inner joins begin with the relation that has the best access, and continue with the best access from the rows so far.
//! Outer joins keep the order of the statement. A method is a lookup in an index, a hash table, or a comparison of all pairs.
//!
//! *Invariants*: a condition is checked as soon as its columns are available; if an outer join may replace them by NULLs,
//! after that join.
//!
//! *Not here*: the access to one table (`access`), and how joins run (`execute/join`, `execute/lookup`).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::catalog::Table;
use crate::encoding::row::Wanted;
use crate::error::SqlError;
use crate::expression::{Comparison, Expression};
use crate::plan::access::{self, Chosen};
use crate::plan::from::{From, JoinKind, Relation, Source};
use crate::plan::{Access, Columns, Join, Node, Scan, SortKey};

/// A tree of joins, and the places of the statement's columns in its rows.
pub(super) struct Joined {
    pub(super) node: Node,
    /// For each column, its place in the row.
    pub(super) places: Vec<usize>,
    /// Whether the rows come in the requested order.
    pub(super) is_ordered: bool,
}

/// Builds the tree of joins.
///
/// `needed` are the columns that are read; `order` is the requested order.
pub(super) fn build(
    from: From,
    conditions: Vec<Expression>,
    needed: &BTreeSet<usize>,
    order: &[SortKey],
) -> Result<Joined, SqlError> {
    let width = from.scope.columns.len();
    let mut builder = Builder {
        relations: from.relations.into_iter().map(Some).collect(),
        conditions: conditions.into_iter().map(Some).collect(),
        needed,
        places: vec![usize::MAX; width],
    };
    let outer = builder.relations.iter().flatten().any(|r| r.kind != JoinKind::Inner);
    let both = builder
        .relations
        .iter()
        .flatten()
        .any(|r| matches!(r.kind, JoinKind::Right | JoinKind::Full));
    if !outer {
        for relation in builder.relations.iter_mut().flatten() {
            builder.conditions.extend(relation.on.drain(..).map(Some));
        }
    }
    if builder.relations.is_empty() {
        let node = builder.filtered(Node::Values(vec![Vec::new()]), true);
        return Ok(Joined { node, places: Vec::new(), is_ordered: false });
    }
    let first = if outer { 0 } else { builder.best_first() };
    let single = builder.relations.len() == 1;
    let order = if single { order } else { &[] };
    let (mut node, is_ordered) = builder.first(first, both, order)?;
    while builder.relations.iter().any(Option::is_some) {
        let next = builder.next(outer);
        node = builder.join(node, next, both)?;
    }
    node = builder.filtered(node, true);
    Ok(Joined { node, places: builder.places, is_ordered })
}

struct Builder<'n> {
    relations: Vec<Option<Relation>>,
    conditions: Vec<Option<Expression>>,
    needed: &'n BTreeSet<usize>,
    /// The place of each column in the rows so far; `usize::MAX` if the column is missing.
    places: Vec<usize>,
}

impl Builder<'_> {
    fn width(&self) -> usize {
        self.places.iter().filter(|place| **place != usize::MAX).count()
    }

    /// Takes the conditions whose columns are all allowed.
    fn take(&mut self, allowed: impl Fn(usize) -> bool) -> Vec<Expression> {
        let mut taken = Vec::new();
        for slot in &mut self.conditions {
            let fits = slot.as_ref().is_some_and(|condition| {
                let mut fits = true;
                condition.for_each_column(&mut |column| fits &= allowed(column));
                fits
            });
            if fits {
                taken.extend(slot.take());
            }
        }
        taken
    }

    /// Adds a filter for the conditions whose columns are available; for all conditions at the end.
    fn filtered(&mut self, node: Node, all: bool) -> Node {
        let places = self.places.clone();
        let taken = self.take(|column| all || places[column] != usize::MAX);
        let taken = taken.into_iter().map(|c| c.renumbered(&|column| places[column])).collect();
        match Expression::all(taken) {
            Some(condition) => Node::Filter { input: Box::new(node), condition },
            None => node,
        }
    }

    /// The inner relation to begin with: the one with the best access.
    fn best_first(&self) -> usize {
        let score = |number: usize| {
            let relation = self.relations[number].as_ref().expect("nothing was taken yet");
            let Source::Table { table, .. } = &relation.source else { return 0 };
            let own: Vec<Expression> = self
                .conditions
                .iter()
                .flatten()
                .filter(|condition| is_within(condition, &relation.columns))
                .cloned()
                .collect();
            choose(table, &relation.columns, own, &|_| false, &[]).score
        };
        // The first of several best ones.
        let best = (0..self.relations.len()).rev().max_by_key(|number| score(*number));
        best.expect("there is a relation")
    }

    /// The next relation: the inner one with the best access, or the first one as written.
    fn next(&self, as_written: bool) -> usize {
        let mut left = (0..self.relations.len()).filter(|n| self.relations[*n].is_some());
        let first = left.clone().next().expect("a relation is left");
        if as_written {
            return first;
        }
        let connected = |number: &usize| {
            let relation = self.relations[*number].as_ref().expect("it is left");
            let outside = |column: usize| self.places[column] != usize::MAX;
            self.conditions.iter().flatten().any(|condition| {
                matches!(condition, Expression::Compare(Comparison::Equal, ..))
                    && touches(condition, &relation.columns)
                    && is_within_or(condition, &relation.columns, &outside)
                    && !is_within(condition, &relation.columns)
            })
        };
        left.find(connected).unwrap_or(first)
    }

    fn first(
        &mut self,
        number: usize,
        both: bool,
        order: &[SortKey],
    ) -> Result<(Node, bool), SqlError> {
        let relation = self.relations[number].take().expect("nothing was taken yet");
        let columns = relation.columns.clone();
        let own = if both { Vec::new() } else { self.take(|column| columns.contains(&column)) };
        let (node, is_ordered) = self.leaf(relation, own, order)?;
        self.place(columns);
        Ok((node, is_ordered))
    }

    fn place(&mut self, columns: Columns) {
        let first = self.width();
        for (offset, column) in columns.enumerate() {
            self.places[column] = first + offset;
        }
    }

    /// A relation by itself, with conditions on its columns.
    fn leaf(
        &self,
        relation: Relation,
        conditions: Vec<Expression>,
        order: &[SortKey],
    ) -> Result<(Node, bool), SqlError> {
        let columns = relation.columns.clone();
        let local = |column: usize| column - columns.start;
        match relation.source {
            Source::Table { table, alias } => {
                if conditions.iter().any(access::is_never) {
                    return Ok((Node::Values(Vec::new()), false));
                }
                let chosen = choose(&table, &columns, conditions.clone(), &|_| false, order);
                let is_ordered = chosen.is_ordered;
                let own =
                    |all: Vec<Expression>| all.into_iter().map(|c| c.renumbered(&local)).collect();
                let whole = match chosen.access {
                    Access::Range(_) if !is_ordered => {
                        let (table, alias) = (Arc::clone(&table), alias.clone());
                        let scan =
                            self.scan(table, alias, &columns, Access::Full, own(conditions))?;
                        Some(Box::new(scan))
                    }
                    _ => None,
                };
                let scan = self.scan(table, alias, &columns, chosen.access, own(chosen.rest))?;
                Ok((Node::Scan(Box::new(Scan { whole, ..scan })), is_ordered))
            }
            Source::System(relation) => {
                let conditions = conditions.into_iter().map(|c| c.renumbered(&local)).collect();
                Ok((Node::System { relation, filter: Expression::all(conditions) }, false))
            }
            Source::Node(node) => {
                let conditions = conditions.into_iter().map(|c| c.renumbered(&local)).collect();
                let node = match Expression::all(conditions) {
                    Some(condition) => Node::Filter { input: Box::new(node), condition },
                    None => node,
                };
                Ok((node, false))
            }
        }
    }

    fn scan(
        &self,
        table: Arc<Table>,
        alias: String,
        columns: &Columns,
        access: Access,
        filter: Vec<Expression>,
    ) -> Result<Scan, SqlError> {
        let mut wanted: Vec<bool> = columns.clone().map(|c| self.needed.contains(&c)).collect();
        for condition in &filter {
            condition.for_each_column(&mut |column| wanted[column] = true);
        }
        let wanted =
            if wanted.iter().all(|wanted| *wanted) { Wanted::All } else { Wanted::Some(wanted) };
        let missing = table.missing_values()?;
        let filter = Expression::all(filter);
        let (whole, with_key, reserves) = (None, false, None);
        let in_any_order = false;
        Ok(Scan {
            table,
            alias,
            access,
            whole,
            filter,
            wanted,
            missing,
            with_key,
            reserves,
            in_any_order,
        })
    }

    /// Joins a relation with the rows so far.
    fn join(&mut self, left: Node, number: usize, both: bool) -> Result<Node, SqlError> {
        let mut relation = self.relations[number].take().expect("it is left");
        let columns = relation.columns.clone();
        let kind = relation.kind;
        let left_width = self.width();
        // Conditions that two rows must satisfy to be joined.
        let mut conditions = std::mem::take(&mut relation.on);
        if kind == JoinKind::Inner && !both {
            let places = &self.places;
            let here: Vec<bool> = (0..places.len())
                .map(|column| places[column] != usize::MAX || columns.contains(&column))
                .collect();
            conditions.extend(self.take(|column| here[column]));
        }
        let local_first = !matches!(kind, JoinKind::Right | JoinKind::Full);
        let (own, between): (Vec<Expression>, Vec<Expression>) = conditions
            .into_iter()
            .partition(|condition| local_first && is_within(condition, &columns));
        let node = match self.lookup(&relation, &own, &between, kind)? {
            Some((scan, rest)) => {
                self.place(columns);
                let condition = self.placed(rest);
                let keep_left = kind == JoinKind::Left;
                Node::Lookup { left: Box::new(left), scan: Box::new(scan), keep_left, condition }
            }
            None => {
                let right_width = columns.len();
                let (right, _) = self.leaf(relation, own, &[])?;
                let keys = self.equalities(&between, &columns);
                self.place(columns);
                let condition = self.placed(keys.1);
                Node::Join(Box::new(Join {
                    left,
                    right,
                    keys: keys.0,
                    condition,
                    keep_left: matches!(kind, JoinKind::Left | JoinKind::Full),
                    keep_right: matches!(kind, JoinKind::Right | JoinKind::Full),
                    widths: [left_width, right_width],
                }))
            }
        };
        Ok(if both { node } else { self.filtered(node, false) })
    }

    /// Conditions on the joined row.
    fn placed(&self, conditions: Vec<Expression>) -> Option<Expression> {
        let placed = conditions.into_iter().map(|c| c.renumbered(&|column| self.places[column]));
        Expression::all(placed.collect())
    }

    /// A lookup in the relation by values of the row on the left, if an index allows that.
    fn lookup(
        &self,
        relation: &Relation,
        own: &[Expression],
        between: &[Expression],
        kind: JoinKind,
    ) -> Result<Option<(Scan, Vec<Expression>)>, SqlError> {
        let Source::Table { table, alias } = &relation.source else { return Ok(None) };
        if !matches!(kind, JoinKind::Inner | JoinKind::Left) {
            return Ok(None);
        }
        let columns = &relation.columns;
        let outside = |column: usize| self.places[column] != usize::MAX;
        let alone = choose(table, columns, own.to_vec(), &|_| false, &[]).score;
        let all = own.iter().chain(between).cloned().collect();
        let chosen = choose(table, columns, all, &outside, &[]);
        // A range without equal columns is worse than a hash table.
        let worthwhile = chosen.score > alone && (chosen.score == usize::MAX || chosen.score >= 3);
        let crosses = chosen.access.expressions().into_iter().any(|expression| {
            let mut crosses = false;
            expression.for_each_column(&mut |_| crosses = true);
            crosses
        });
        if !worthwhile || !crosses {
            return Ok(None);
        }
        let (filter, rest): (Vec<Expression>, Vec<Expression>) =
            chosen.rest.into_iter().partition(|condition| is_within(condition, columns));
        let first = columns.start;
        let filter = filter.into_iter().map(|c| c.renumbered(&|column| column - first)).collect();
        let access = renumbered(chosen.access, &|column| self.places[column]);
        let scan = self.scan(Arc::clone(table), alias.clone(), columns, access, filter)?;
        Ok(Some((scan, rest)))
    }

    /// Pairs of expressions that must be equal, each on the rows of its side, and the other conditions.
    fn equalities(
        &self,
        conditions: &[Expression],
        right: &Columns,
    ) -> (Vec<(Expression, Expression)>, Vec<Expression>) {
        let is_left = |expression: &Expression| {
            let mut is_left = true;
            expression.for_each_column(&mut |c| is_left &= self.places[c] != usize::MAX);
            is_left
        };
        let left_place = |column: usize| self.places[column];
        let right_place = |column: usize| column - right.start;
        let (mut keys, mut rest) = (Vec::new(), Vec::new());
        for condition in conditions {
            if let Expression::Compare(Comparison::Equal, a, b) = condition {
                let sides = if is_left(a) && is_within(b, right) && touches(b, right) {
                    Some((a, b))
                } else if is_left(b) && is_within(a, right) && touches(a, right) {
                    Some((b, a))
                } else {
                    None
                };
                if let Some((left, right)) = sides {
                    let left = (**left).clone().renumbered(&left_place);
                    keys.push((left, (**right).clone().renumbered(&right_place)));
                    continue;
                }
            }
            rest.push(condition.clone());
        }
        (keys, rest)
    }
}

fn choose(
    table: &Table,
    columns: &Columns,
    conditions: Vec<Expression>,
    outside: &impl Fn(usize) -> bool,
    order: &[SortKey],
) -> Chosen {
    let own = |column: usize| columns.contains(&column).then(|| column - columns.start);
    access::choose(table, conditions, &own, outside, order)
}

fn is_within(expression: &Expression, columns: &Columns) -> bool {
    is_within_or(expression, columns, &|_| false)
}

fn is_within_or(
    expression: &Expression,
    columns: &Columns,
    allowed: &impl Fn(usize) -> bool,
) -> bool {
    let mut within = true;
    expression
        .for_each_column(&mut |column| within &= columns.contains(&column) || allowed(column));
    within
}

fn touches(expression: &Expression, columns: &Columns) -> bool {
    let mut touches = false;
    expression.for_each_column(&mut |column| touches |= columns.contains(&column));
    touches
}

fn renumbered(access: Access, number: &impl Fn(usize) -> usize) -> Access {
    let one = |expression: Expression| expression.renumbered(number);
    match access {
        Access::Points { index, columns } => {
            let columns =
                columns.into_iter().map(|list| list.into_iter().map(one).collect()).collect();
            Access::Points { index, columns }
        }
        Access::Range(mut range) => {
            range.prefix = range.prefix.into_iter().map(one).collect();
            range.lower = range.lower.map(|(bound, included)| (one(bound), included));
            range.upper = range.upper.map(|(bound, included)| (one(bound), included));
            Access::Range(range)
        }
        full @ Access::Full => full,
    }
}
