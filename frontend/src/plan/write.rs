//! INSERT, UPDATE and DELETE: the source of their rows, and expressions for the new values.
//!
//! *Source*: PostgreSQL 15 documentation, INSERT, UPDATE and DELETE.
//!
//! *Not here*: writing rows and index entries (`execute/write`).

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use sqlparser::ast::{
    self, Assignment, AssignmentTarget, ConflictTarget, Expr, FromTable, ObjectName,
    OnConflictAction, OnInsert, SelectItem, SetExpr, Spanned, TableFactor, TableObject,
    TableWithJoins,
};

use crate::catalog::{AsSerial, Table};
use crate::error::SqlError;
use crate::expression::Expression;
use crate::plan::bind::{Binder, Typed, name_of, names_of};
use crate::plan::from::From;
use crate::plan::join::build;
use crate::plan::scope::{Scope, ScopeColumn};
use crate::plan::{IndexChoice, Node, Reserve};
use crate::session::Column;
use crate::value::{DataType, Value};

/// Conditions on every new row of a table.
#[derive(Debug)]
pub(crate) struct RowRules {
    pub(crate) table: Arc<Table>,
    /// CHECK constraints, by name.
    pub(crate) checks: Vec<(String, Expression)>,
}

/// INSERT.
#[derive(Debug)]
pub(crate) struct Insert {
    pub(crate) rules: RowRules,
    pub(crate) source: Node,
    /// For each column of the table, its value as an expression on the source's rows.
    pub(crate) values: Vec<Expression>,
    pub(crate) conflict: Option<OnConflict>,
    pub(crate) returning: Option<Vec<Expression>>,
    /// Whether another attempt inserts the same rows, and duplicate keys are the only possible error. Then the commit may
    /// detect the duplicates.
    pub(crate) repeats: bool,
    /// Whether the source reads the table. Then all its rows are read before the first one is inserted, unless they go into new storages.
    pub(crate) reads_table: bool,
}

impl Insert {
    pub(super) fn new(
        rules: RowRules,
        source: Node,
        values: Vec<Expression>,
        conflict: Option<OnConflict>,
        returning: Option<Vec<Expression>>,
    ) -> Self {
        let changes = |expression: &Expression| expression.any(&Expression::changes);
        let is_given = matches!(&source, Node::Values(rows) if !rows.iter().flatten().any(changes));
        let is_plain = conflict.is_none() && returning.is_none();
        let repeats = is_given && is_plain && !values.iter().any(changes);
        let reads_table = source.reads(&rules.table);
        Self { rules, source, values, conflict, returning, repeats, reads_table }
    }

    /// An INSERT of the same rows into another state of the table, without a source.
    pub(crate) fn of_same_rows(&self, table: Table) -> Self {
        let rules = RowRules { table: Arc::new(table), checks: self.rules.checks.clone() };
        Self::new(rules, Node::Values(Vec::new()), self.values.clone(), None, None)
    }

    /// An INSERT of rows of the same table, which satisfy its constraints, without a source.
    pub(crate) fn of_whole_rows(&self) -> Self {
        let rules = RowRules { table: Arc::clone(&self.rules.table), checks: Vec::new() };
        let values = (0..rules.table.columns.len()).map(Expression::Column).collect();
        Self::new(rules, Node::Values(Vec::new()), values, None, None)
    }
}

/// ON CONFLICT.
#[derive(Debug)]
pub(crate) struct OnConflict {
    /// None: a conflict in any unique index.
    pub(crate) target: Option<IndexChoice>,
    /// None: DO NOTHING.
    pub(crate) update: Option<ConflictUpdate>,
}

/// DO UPDATE. The expressions are on the existing row followed by the proposed one.
#[derive(Debug)]
pub(crate) struct ConflictUpdate {
    pub(crate) assignments: Vec<(usize, Expression)>,
    pub(crate) condition: Option<Expression>,
}

/// UPDATE. Rows of the source end in their primary key.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) rules: RowRules,
    pub(crate) source: Node,
    pub(crate) assignments: Vec<(usize, Expression)>,
    pub(crate) returning: Option<Vec<Expression>>,
}

/// DELETE. Rows of the source end in their primary key.
#[derive(Debug)]
pub(crate) struct Delete {
    pub(crate) table: Arc<Table>,
    pub(crate) source: Node,
    pub(crate) returning: Option<Vec<Expression>>,
}

impl Binder {
    /// A table that may be written.
    pub(super) fn target(&self, name: &ObjectName) -> Result<Arc<Table>, SqlError> {
        let names = names_of(name)?;
        let bare = names.last().map_or("", String::as_str);
        let schema = names.len().checked_sub(2).map(|number| names[number].as_str());
        if crate::catalog::system::relation(schema, bare).is_some() {
            let message = format!("permission denied: \"{bare}\" is a system catalog");
            return Err(SqlError::new("42501", message));
        }
        if let Some(schema) = schema.filter(|schema| *schema != "public") {
            let message = format!("relation \"{schema}.{bare}\" does not exist");
            return Err(SqlError::new("42P01", message).with_position(self.position(name.span())));
        }
        let table = self.catalog.require(bare).cloned();
        let table = table.map_err(|error| error.with_position(self.position(name.span())))?;
        if table.frozen {
            let message = format!("relation \"{bare}\" is getting another primary key");
            return Err(SqlError::new("55006", message).with_hint(
                "change its rows when ALTER TABLE ... ADD PRIMARY KEY has ended; they can be read meanwhile",
            ));
        }
        Ok(table)
    }

    fn target_scope(table: &Table, alias: &str) -> Rc<Scope> {
        let columns = table.columns.iter().map(|column| (column.name.clone(), column.data_type));
        Rc::new(Scope::named(alias, columns))
    }

    /// The CHECK constraints of a table.
    pub(super) fn rules(&mut self, table: &Arc<Table>) -> Result<RowRules, SqlError> {
        let scope = Self::target_scope(table, &table.name);
        let mut checks = Vec::with_capacity(table.checks.len());
        for check in &table.checks {
            let expr = crate::parser::parse_expression(&check.sql)?;
            checks.push((check.name.clone(), self.condition(&expr, &scope, "CHECK")?));
        }
        Ok(RowRules { table: Arc::clone(table), checks })
    }

    /// The value of a column that a statement does not mention.
    pub(super) fn default_value(
        &mut self,
        table: &Table,
        column: usize,
    ) -> Result<Expression, SqlError> {
        let column = &table.columns[column];
        if let Some(counter) = &column.counter {
            let typed = Typed::new(Expression::NextValue(counter.id), DataType::BigInt);
            return self.coerced(typed, column.data_type, false);
        }
        match &column.default {
            None => Ok(Expression::Constant(Value::Null)),
            Some(default) => {
                let expr = crate::parser::parse_expression(&default.0)?;
                self.default_expression(&expr, &column.name, column.data_type)
            }
        }
    }

    /// DEFAULT's expression, in the type of its column.
    pub(super) fn default_expression(
        &mut self,
        expr: &Expr,
        column: &str,
        data_type: DataType,
    ) -> Result<Expression, SqlError> {
        let typed = self.expression(expr, &Rc::new(Scope::default()))?;
        self.assigned(typed, column, data_type)
    }

    fn assigned(
        &mut self,
        typed: Typed,
        column: &str,
        to: DataType,
    ) -> Result<Expression, SqlError> {
        let from = typed.data_type;
        self.coerced(typed, to, false).map_err(|error| match (error.code, from) {
            ("42846", Some(from)) => {
                let (to, from) = (to.name(), from.name());
                let message =
                    format!("column \"{column}\" is of type {to} but expression is of type {from}");
                SqlError::new("42804", message)
                    .with_hint("You will need to rewrite or cast the expression.")
            }
            _ => error,
        })
    }

    /// INSERT, and the columns of RETURNING.
    pub(super) fn insert(
        &mut self,
        insert: &ast::Insert,
    ) -> Result<(Insert, Vec<Column>), SqlError> {
        let TableObject::TableName(name) = &insert.table else {
            return Err(SqlError::unsupported("INSERT into anything but a table"));
        };
        if insert.or.is_some() || insert.overwrite || insert.replace_into || insert.ignore {
            return Err(SqlError::unsupported("INSERT OR, OVERWRITE, IGNORE and REPLACE"));
        }
        let table = self.target(name)?;
        let alias = insert.table_alias.as_ref().map(|alias| name_of(&alias.alias));
        let alias = alias.unwrap_or_else(|| table.name.clone());
        let mut targets = Vec::with_capacity(insert.columns.len());
        for column in &insert.columns {
            let name = names_of(column)?.pop().unwrap_or_default();
            let number = table
                .require_column(&name)
                .map_err(|error| error.with_position(self.position(column.span())))?;
            if targets.contains(&number) {
                let message = format!("column \"{name}\" specified more than once");
                return Err(SqlError::new("42701", message));
            }
            targets.push(number);
        }
        let listed = !targets.is_empty();
        if !listed {
            targets = (0..table.columns.len()).collect();
        }
        let (source, given) = match &insert.source {
            None => (Node::Values(vec![Vec::new()]), Vec::new()),
            Some(query) => self.insert_source(&table, query, &targets, listed)?,
        };
        targets.truncate(given.len());
        let mut values = Vec::with_capacity(table.columns.len());
        for column in 0..table.columns.len() {
            values.push(match targets.iter().position(|target| *target == column) {
                Some(number) => given[number].clone(),
                None => self.default_value(&table, column)?,
            });
        }
        let conflict = match &insert.on {
            None => None,
            Some(OnInsert::OnConflict(on)) => Some(self.on_conflict(on, &table, &alias)?),
            Some(_) => return Err(SqlError::unsupported("ON DUPLICATE KEY UPDATE")),
        };
        let (returning, columns) = self.returned(insert.returning.as_deref(), &table, &alias)?;
        let rules = self.rules(&table)?;
        Ok((Insert::new(rules, source, values, conflict, returning), columns))
    }

    /// The rows to insert, and for each target column its value on those rows.
    fn insert_source(
        &mut self,
        table: &Arc<Table>,
        query: &ast::Query,
        targets: &[usize],
        listed: bool,
    ) -> Result<(Node, Vec<Expression>), SqlError> {
        let too_many = || SqlError::new("42601", "INSERT has more expressions than target columns");
        let too_few = || SqlError::new("42601", "INSERT has more target columns than expressions");
        if let SetExpr::Values(values) = &*query.body
            && query.with.is_none()
            && query.order_by.is_none()
            && query.limit_clause.is_none()
        {
            let scope = Rc::new(Scope::default());
            let width = values.rows.first().map_or(0, |row| row.content.len());
            let mut rows = Vec::with_capacity(values.rows.len());
            for row in &values.rows {
                let row = &row.content;
                if row.len() != width {
                    return Err(SqlError::new("42601", "VALUES lists must all be the same length"));
                }
                if row.len() > targets.len() {
                    return Err(too_many());
                }
                if listed && row.len() < targets.len() {
                    return Err(too_few());
                }
                let mut expressions = Vec::with_capacity(width);
                for (expr, target) in row.iter().zip(targets) {
                    // Each of these expressions is evaluated once anyway.
                    expressions.push(self.inserted(table, *target, expr, &scope)?.each_time());
                }
                rows.push(expressions);
            }
            return Ok((Node::Values(rows), (0..width).map(Expression::Column).collect()));
        }
        let planned = self.query(query)?;
        if planned.columns.len() > targets.len() {
            return Err(too_many());
        }
        if listed && planned.columns.len() < targets.len() {
            return Err(too_few());
        }
        let mut given = Vec::with_capacity(planned.columns.len());
        for (number, (source, target)) in planned.columns.iter().zip(targets).enumerate() {
            let column = &table.columns[*target];
            check_not_generated(column)?;
            let typed = Typed::new(Expression::Column(number), source.data_type);
            given.push(self.assigned(typed, &column.name, column.data_type)?);
        }
        Ok((planned.node, given))
    }

    fn inserted(
        &mut self,
        table: &Arc<Table>,
        target: usize,
        expr: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<Expression, SqlError> {
        if is_default(expr) {
            return self.default_value(table, target);
        }
        let column = &table.columns[target];
        check_not_generated(column)?;
        let typed = self.expression(expr, scope)?;
        self.assigned(typed, &column.name, column.data_type)
            .map_err(|error| error.with_position(self.position(expr.span())))
    }

    fn on_conflict(
        &mut self,
        on: &ast::OnConflict,
        table: &Arc<Table>,
        alias: &str,
    ) -> Result<OnConflict, SqlError> {
        let target =
            match &on.conflict_target {
                None => None,
                Some(ConflictTarget::Columns(columns)) => {
                    let mut numbers = BTreeSet::new();
                    for column in columns {
                        numbers.insert(table.require_column(&name_of(column))?);
                    }
                    Some(unique_index(table, |_, columns| {
                    columns.iter().copied().collect::<BTreeSet<usize>>() == numbers
                })
                .ok_or_else(|| {
                    let message = "there is no unique or exclusion constraint matching the ON \
                                   CONFLICT specification";
                    SqlError::new("42P10", message)
                })?)
                }
                Some(ConflictTarget::OnConstraint(name)) => {
                    let name = names_of(name)?.pop().unwrap_or_default();
                    let found = unique_index(table, |index, _| index == name);
                    Some(found.ok_or_else(|| {
                        let table = &table.name;
                        let message =
                            format!("constraint \"{name}\" for table \"{table}\" does not exist");
                        SqlError::new("42704", message)
                    })?)
                }
            };
        let OnConflictAction::DoUpdate(update) = &on.action else {
            return Ok(OnConflict { target, update: None });
        };
        if target.is_none() {
            let message =
                "ON CONFLICT DO UPDATE requires inference specification or constraint name";
            return Err(SqlError::new("42601", message));
        }
        let mut scope = (*Self::target_scope(table, alias)).clone();
        let excluded = scope.columns.iter().map(|column| ScopeColumn {
            table: Some("excluded".to_owned()),
            hidden: true,
            ..column.clone()
        });
        scope.columns.extend(excluded.collect::<Vec<ScopeColumn>>());
        let scope = Rc::new(scope);
        let assignments = self.assignments(&update.assignments, table, &scope)?;
        let condition = match &update.selection {
            Some(condition) => Some(self.condition(condition, &scope, "WHERE")?),
            None => None,
        };
        Ok(OnConflict { target, update: Some(ConflictUpdate { assignments, condition }) })
    }

    fn assignments(
        &mut self,
        assignments: &[Assignment],
        table: &Arc<Table>,
        scope: &Rc<Scope>,
    ) -> Result<Vec<(usize, Expression)>, SqlError> {
        let mut bound: Vec<(usize, Expression)> = Vec::with_capacity(assignments.len());
        for assignment in assignments {
            let pairs: Vec<(&ObjectName, &Expr)> = match (&assignment.target, &assignment.value) {
                (AssignmentTarget::ColumnName(name), value) => vec![(name, value)],
                (AssignmentTarget::Tuple(names), Expr::Tuple(values))
                    if names.len() == values.len() =>
                {
                    names.iter().zip(values).collect()
                }
                (AssignmentTarget::Tuple(_), _) => {
                    return Err(SqlError::unsupported("SET (...) = a subquery"));
                }
            };
            for (target, value) in pairs {
                let name = names_of(target)?.pop().unwrap_or_default();
                let number = table
                    .require_column(&name)
                    .map_err(|error| error.with_position(self.position(target.span())))?;
                if bound.iter().any(|(other, _)| *other == number) {
                    let message = format!("multiple assignments to same column \"{name}\"");
                    return Err(SqlError::new("42601", message));
                }
                let expression = if is_default(value) {
                    self.default_value(table, number)?
                } else {
                    check_not_generated(&table.columns[number])?;
                    let typed = self.expression(value, scope)?;
                    self.assigned(typed, &name, table.columns[number].data_type)
                        .map_err(|error| error.with_position(self.position(value.span())))?
                };
                bound.push((number, expression));
            }
        }
        Ok(bound)
    }

    fn returned(
        &mut self,
        returning: Option<&[SelectItem]>,
        table: &Arc<Table>,
        alias: &str,
    ) -> Result<(Option<Vec<Expression>>, Vec<Column>), SqlError> {
        let Some(items) = returning else { return Ok((None, Vec::new())) };
        let (expressions, columns) = self.returning(items, &Self::target_scope(table, alias))?;
        Ok((Some(expressions), columns))
    }

    /// UPDATE, and the columns of RETURNING.
    pub(super) fn update(
        &mut self,
        update: &ast::Update,
    ) -> Result<(Update, Vec<Column>), SqlError> {
        if update.from.is_some() {
            return Err(SqlError::unsupported("UPDATE ... FROM")
                .with_hint("use a subquery in SET and WHERE"));
        }
        if update.or.is_some() || update.limit.is_some() || !update.order_by.is_empty() {
            return Err(SqlError::unsupported("UPDATE with OR, ORDER BY or LIMIT"));
        }
        let (table, alias) = self.one_target(std::slice::from_ref(&update.table), "UPDATE")?;
        let scope = Self::target_scope(&table, &alias);
        let assignments = self.assignments(&update.assignments, &table, &scope)?;
        let source = self.changed_rows(&table, &alias, update.selection.as_ref())?;
        let (returning, columns) = self.returned(update.returning.as_deref(), &table, &alias)?;
        let rules = self.rules(&table)?;
        Ok((Update { rules, source, assignments, returning }, columns))
    }

    /// DELETE, and the columns of RETURNING.
    pub(super) fn delete(
        &mut self,
        delete: &ast::Delete,
    ) -> Result<(Delete, Vec<Column>), SqlError> {
        if delete.using.is_some() || !delete.tables.is_empty() {
            return Err(
                SqlError::unsupported("DELETE ... USING").with_hint("use a subquery in WHERE")
            );
        }
        if delete.limit.is_some() || !delete.order_by.is_empty() {
            return Err(SqlError::unsupported("DELETE with ORDER BY or LIMIT"));
        }
        let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
        let (table, alias) = self.one_target(from, "DELETE")?;
        let source = self.changed_rows(&table, &alias, delete.selection.as_ref())?;
        let (returning, columns) = self.returned(delete.returning.as_deref(), &table, &alias)?;
        Ok((Delete { table, source, returning }, columns))
    }

    fn one_target(
        &self,
        from: &[TableWithJoins],
        statement: &str,
    ) -> Result<(Arc<Table>, String), SqlError> {
        match from {
            [TableWithJoins { relation: TableFactor::Table { name, alias, .. }, joins }]
                if joins.is_empty() =>
            {
                let table = self.target(name)?;
                let alias = alias.as_ref().map(|alias| name_of(&alias.name));
                let alias = alias.unwrap_or_else(|| table.name.clone());
                Ok((table, alias))
            }
            _ => Err(SqlError::unsupported(format_args!("{statement} of several tables"))),
        }
    }

    /// The rows that satisfy a condition, each followed by its primary key.
    fn changed_rows(
        &mut self,
        table: &Arc<Table>,
        alias: &str,
        condition: Option<&Expr>,
    ) -> Result<Node, SqlError> {
        let from = From::table(table, alias);
        let scope = Rc::new(from.scope.clone());
        let conditions = match condition {
            Some(condition) => self.condition(condition, &scope, "WHERE")?.into_conjuncts(),
            None => Vec::new(),
        };
        let needed = (0..table.columns.len()).collect();
        let mut node = build(from, conditions, &needed, &[])?.node;
        with_keys(&mut node);
        Ok(node)
    }
}

/// Makes the scan below append primary keys, and reserve rows that are named by theirs.
fn with_keys(node: &mut Node) {
    match node {
        Node::Scan(scan) => (scan.with_key, scan.reserves) = (true, Some(Reserve::Change)),
        Node::Filter { input, .. } => with_keys(input),
        _ => {}
    }
}

fn unique_index(table: &Table, fits: impl Fn(&str, &[usize]) -> bool) -> Option<IndexChoice> {
    if table.primary_key.as_ref().is_some_and(|key| fits(&key.name, &key.columns)) {
        return Some(IndexChoice::Primary);
    }
    let mut indexes = table.indexes.iter();
    let found =
        indexes.position(|index| index.unique && index.ready && fits(&index.name, &index.columns));
    found.map(IndexChoice::Secondary)
}

fn is_default(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(ident)
        if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

fn check_not_generated(column: &crate::catalog::Column) -> Result<(), SqlError> {
    let always = column.counter.as_ref().is_some_and(|c| c.kind == AsSerial::IdentityAlways);
    if !always {
        return Ok(());
    }
    let name = &column.name;
    Err(SqlError::new("428C9", format!("cannot insert a non-DEFAULT value into column \"{name}\""))
        .with_detail(format!(
            "Column \"{name}\" is an identity column defined as GENERATED ALWAYS."
        )))
}
