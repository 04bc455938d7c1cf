//! FROM: its relations, and the conditions of their joins.
//!
//! Columns are numbered through all relations in the order of the statement.
//!
//! *Not here*: the order and the method of the joins (`join`).

use std::rc::Rc;
use std::sync::Arc;

use sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, JoinConstraint, JoinOperator, Spanned, TableAlias,
    TableFactor, TableWithJoins,
};

use crate::catalog::system::Relation as SystemRelation;
use crate::catalog::{Table, system};
use crate::error::SqlError;
use crate::expression::{Comparison, Expression};
use crate::plan::bind::{Binder, Typed, alias_of, name_of, names_of};
use crate::plan::join::build;
use crate::plan::query::COMMON_USES_MAX;
use crate::plan::scope::Scope;
use crate::plan::{Columns, Node};
use crate::value::{DataType, Value};

/// The relations of FROM.
pub(super) struct From {
    pub(super) relations: Vec<Relation>,
    pub(super) scope: Scope,
}

/// A relation, and its join with those before it.
pub(super) struct Relation {
    pub(super) source: Source,
    /// Its columns, numbered through all relations.
    pub(super) columns: Columns,
    pub(super) kind: JoinKind,
    /// The conditions of ON and USING.
    pub(super) on: Vec<Expression>,
}

/// The source of a relation's rows.
pub(super) enum Source {
    Table { table: Arc<Table>, alias: String },
    System(&'static SystemRelation),
    Node(Node),
}

/// Which rows without a partner a join keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
}

impl From {
    /// A single table, for UPDATE and DELETE.
    pub(super) fn table(table: &Arc<Table>, alias: &str) -> Self {
        let columns = table.columns.iter().map(|column| (column.name.clone(), column.data_type));
        let scope = Scope::named(alias, columns);
        let mut from = Self { relations: Vec::new(), scope: Scope::default() };
        let source = Source::Table { table: Arc::clone(table), alias: alias.to_owned() };
        from.add(source, scope, JoinKind::Inner);
        from
    }

    /// The conditions of ON and USING.
    pub(super) fn conditions(&self) -> impl Iterator<Item = &Expression> {
        self.relations.iter().flat_map(|relation| &relation.on)
    }

    fn add(&mut self, source: Source, scope: Scope, kind: JoinKind) {
        let first = self.scope.columns.len();
        let columns = first..first + scope.columns.len();
        self.scope.append(scope);
        self.relations.push(Relation { source, columns, kind, on: Vec::new() });
    }
}

impl Binder {
    /// The relations of FROM, and the conditions of their joins.
    pub(super) fn from(&mut self, items: &[TableWithJoins]) -> Result<From, SqlError> {
        let mut from = From { relations: Vec::new(), scope: Scope::default() };
        for item in items {
            let whole = item.joins.iter().any(|join| {
                matches!(
                    join.join_operator,
                    JoinOperator::Right(_)
                        | JoinOperator::RightOuter(_)
                        | JoinOperator::FullOuter(_)
                )
            });
            if whole && !from.relations.is_empty() {
                let (node, scope) = self.whole(item)?;
                from.add(Source::Node(node), scope, JoinKind::Inner);
            } else {
                self.add_item(&mut from, item)?;
            }
        }
        Ok(from)
    }

    fn add_item(&mut self, from: &mut From, item: &TableWithJoins) -> Result<(), SqlError> {
        self.add_factor(from, &item.relation, JoinKind::Inner)?;
        for join in &item.joins {
            use JoinOperator as Op;
            let (kind, constraint) = match &join.join_operator {
                Op::Join(constraint) | Op::Inner(constraint) | Op::CrossJoin(constraint) => {
                    (JoinKind::Inner, constraint)
                }
                Op::Left(constraint) | Op::LeftOuter(constraint) => (JoinKind::Left, constraint),
                Op::Right(constraint) | Op::RightOuter(constraint) => (JoinKind::Right, constraint),
                Op::FullOuter(constraint) => (JoinKind::Full, constraint),
                _ => return Err(SqlError::unsupported(format_args!("the join {join}"))),
            };
            let left_columns = from.scope.columns.len();
            self.add_factor(from, &join.relation, kind)?;
            let conditions = match constraint {
                JoinConstraint::On(condition) => {
                    let scope = Rc::new(from.scope.clone());
                    self.condition(condition, &scope, "JOIN/ON")?.into_conjuncts()
                }
                JoinConstraint::Using(names) => {
                    let names: Result<Vec<String>, SqlError> =
                        names.iter().map(|n| Ok(names_of(n)?.concat())).collect();
                    self.merged(from, left_columns, &names?, kind)?
                }
                JoinConstraint::Natural => {
                    let names = shared_names(&from.scope, left_columns);
                    self.merged(from, left_columns, &names, kind)?
                }
                JoinConstraint::None => Vec::new(),
            };
            from.relations.last_mut().expect("a relation was added above").on = conditions;
        }
        Ok(())
    }

    /// The conditions of USING; one column of each pair is hidden.
    fn merged(
        &mut self,
        from: &mut From,
        left_columns: usize,
        names: &[String],
        kind: JoinKind,
    ) -> Result<Vec<Expression>, SqlError> {
        if kind == JoinKind::Full {
            return Err(SqlError::unsupported("FULL JOIN with USING"));
        }
        let mut conditions = Vec::with_capacity(names.len());
        for name in names {
            let find = |columns: Columns| {
                let mut found = columns.filter(|number| {
                    let column = &from.scope.columns[*number];
                    column.name == *name && !column.hidden
                });
                let first = found.next();
                let message = format!(
                    "column \"{name}\" specified in USING clause does not exist on both sides, or twice on one"
                );
                first
                    .filter(|_| found.next().is_none())
                    .ok_or_else(|| SqlError::new("42703", message))
            };
            let left = find(0..left_columns)?;
            let right = find(left_columns..from.scope.columns.len())?;
            let typed = |number: usize| {
                Typed::new(Expression::Column(number), from.scope.columns[number].data_type)
            };
            let (left_side, right_side) = (typed(left), typed(right));
            let condition = self.compare(left_side, Comparison::Equal, right_side)?;
            conditions.push(condition.expression);
            let hidden = if kind == JoinKind::Right { left } else { right };
            from.scope.columns[hidden].hidden = true;
        }
        Ok(conditions)
    }

    fn add_factor(
        &mut self,
        from: &mut From,
        factor: &TableFactor,
        kind: JoinKind,
    ) -> Result<(), SqlError> {
        let (source, scope) = self.factor(factor)?;
        for name in scope.columns.iter().filter_map(|column| column.table.as_deref()) {
            if from.scope.has_table(name) {
                let message = format!("table name \"{name}\" specified more than once");
                return Err(SqlError::new("42712", message));
            }
        }
        from.add(source, scope, kind);
        Ok(())
    }

    fn factor(&mut self, factor: &TableFactor) -> Result<(Source, Scope), SqlError> {
        match factor {
            TableFactor::Table { name, alias, args: None, sample: None, .. } => {
                self.named_relation(name, alias.as_ref())
            }
            TableFactor::Table { name, alias, args: Some(arguments), .. } => {
                self.series(&names_of(name)?, &arguments.args, alias.as_ref())
            }
            TableFactor::Function { lateral: false, name, args, alias, with_ordinality: false } => {
                self.series(&names_of(name)?, args, alias.as_ref())
            }
            TableFactor::Derived { lateral: false, subquery, alias, .. } => {
                let planned = self.query(subquery)?;
                let columns = planned.columns.into_iter().map(|c| (c.name, c.data_type)).collect();
                let scope = aliased("", columns, alias.as_ref())?;
                Ok((Source::Node(planned.node), scope))
            }
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                let (node, scope) = self.whole(table_with_joins)?;
                Ok((Source::Node(node), scope))
            }
            other => Err(SqlError::unsupported(format_args!("FROM {other}"))),
        }
    }

    /// Joins in parentheses, which are planned by themselves.
    fn whole(&mut self, item: &TableWithJoins) -> Result<(Node, Scope), SqlError> {
        let mut inner = From { relations: Vec::new(), scope: Scope::default() };
        self.add_item(&mut inner, item)?;
        let scope = inner.scope.clone();
        let needed = (0..scope.columns.len()).collect();
        let joined = build(inner, Vec::new(), &needed, &[])?;
        let expressions = joined.places.into_iter().map(Expression::Column).collect();
        Ok((Node::Project { input: Box::new(joined.node), expressions }, scope))
    }

    fn named_relation(
        &mut self,
        name: &ast::ObjectName,
        alias: Option<&TableAlias>,
    ) -> Result<(Source, Scope), SqlError> {
        let position = self.position(name.span());
        let names = names_of(name)?;
        let (schema, name) = match names.as_slice() {
            [name] => (None, name),
            [schema, name] | [_, schema, name] => (Some(schema.as_str()), name),
            _ => return Err(SqlError::unsupported("a name of more than three parts")),
        };
        if schema.is_none()
            && let Some(common) = self.common_tables.iter().rev().find(|c| c.name == *name)
        {
            let common = Rc::clone(common);
            return self.common_table(&common, alias);
        }
        if let Some(relation) = system::relation(schema, name) {
            let columns = relation.columns.iter();
            let columns =
                columns.map(|(name, data_type)| ((*name).to_owned(), *data_type)).collect();
            return Ok((Source::System(relation), aliased(name, columns, alias)?));
        }
        if let Some(schema) = schema.filter(|schema| *schema != "public") {
            let message = format!("relation \"{schema}.{name}\" does not exist");
            return Err(SqlError::new("42P01", message).with_position(position));
        }
        let table = self.catalog.require(name).map_err(|error| error.with_position(position))?;
        let table = Arc::clone(table);
        let columns = table.columns.iter().map(|c| (c.name.clone(), c.data_type)).collect();
        let scope = aliased(name, columns, alias)?;
        let alias = alias.map_or(name.clone(), |alias| name_of(&alias.name));
        Ok((Source::Table { table, alias }, scope))
    }

    /// The rows of a WITH query, which is planned again for each use.
    fn common_table(
        &mut self,
        common: &crate::plan::query::CommonTable,
        alias: Option<&TableAlias>,
    ) -> Result<(Source, Scope), SqlError> {
        self.common_uses += 1;
        if self.common_uses > COMMON_USES_MAX {
            let message = format!("WITH queries are used more than {COMMON_USES_MAX} times");
            return Err(SqlError::new("54001", message)
                .with_hint("a use inside another WITH query counts for each use of that"));
        }
        let visible = common.visible.min(self.common_tables.len());
        let later = self.common_tables.split_off(visible);
        let planned = self.query(&common.table.query);
        self.common_tables.extend(later);
        let planned = planned?;
        let columns = planned.columns.into_iter().map(|c| (c.name, c.data_type)).collect();
        let scope = aliased(&common.name, columns, Some(&common.table.alias))?;
        let columns = scope.columns.into_iter().map(|c| (c.name, c.data_type)).collect();
        Ok((Source::Node(planned.node), aliased(&common.name, columns, alias)?))
    }

    fn series(
        &mut self,
        names: &[String],
        arguments: &[FunctionArg],
        alias: Option<&TableAlias>,
    ) -> Result<(Source, Scope), SqlError> {
        let name = names.last().map_or("", String::as_str);
        if name != "generate_series" || !(2..=3).contains(&arguments.len()) {
            return Err(SqlError::unsupported(format_args!("the function {name} in FROM")));
        }
        let scope = Rc::new(Scope::default());
        let one = || Typed::new(Expression::Constant(Value::Integer(1)), DataType::Integer);
        let mut bounds = [one(), one(), one()];
        let mut data_type = DataType::Integer;
        for (bound, argument) in bounds.iter_mut().zip(arguments) {
            let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = argument else {
                return Err(SqlError::unsupported("a named argument"));
            };
            *bound = self.expression(expr, &scope)?;
            if bound.data_type.is_some_and(|t| t == DataType::BigInt) {
                data_type = DataType::BigInt;
            }
        }
        let [first, last, step] = bounds;
        let bounds = [
            self.coerced(first, data_type, false)?,
            self.coerced(last, data_type, false)?,
            self.coerced(step, data_type, false)?,
        ];
        // The alias of a function names its column as well.
        let column = alias.map_or(name.to_owned(), |alias| name_of(&alias.name));
        let scope = aliased(name, vec![(column, data_type)], alias)?;
        Ok((Source::Node(Node::Series(bounds)), scope))
    }
}

/// A relation's columns under its alias.
fn aliased(
    name: &str,
    mut columns: Vec<(String, DataType)>,
    alias: Option<&TableAlias>,
) -> Result<Scope, SqlError> {
    let Some(alias) = alias else { return Ok(Scope::named(name, columns)) };
    let alias_name = alias_of(&alias.name)?;
    if alias.columns.len() > columns.len() {
        let (has, given) = (columns.len(), alias.columns.len());
        let message = format!(
            "table \"{alias_name}\" has {has} columns available but {given} columns specified"
        );
        return Err(SqlError::new("42P10", message));
    }
    for (column, written) in columns.iter_mut().zip(&alias.columns) {
        column.0 = name_of(&written.name);
    }
    Ok(Scope::named(&alias_name, columns))
}

/// The column names that both sides share.
fn shared_names(scope: &Scope, left_columns: usize) -> Vec<String> {
    let (left, right) = scope.columns.split_at(left_columns);
    let visible = left.iter().filter(|column| !column.hidden);
    let shared = visible.filter(|column| right.iter().any(|other| other.name == column.name));
    shared.map(|column| column.name.clone()).collect()
}
