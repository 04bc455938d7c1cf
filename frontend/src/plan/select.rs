//! SELECT: projection, grouping, DISTINCT, and the order of rows.
//!
//! ```text
//! FROM, WHERE (from, join) ─► group, HAVING ─► number rows ─► project ─► sort, DISTINCT
//! ```
//!
//! *Source*: PostgreSQL 15, sections 7.2.3, 7.3 and 7.5, and SELECT, "DISTINCT Clause".
//!
//! *Not here*: LIMIT, set operations and WITH (`query`).

use std::collections::BTreeSet;
use std::rc::Rc;

use sqlparser::ast::{
    self, Distinct, Expr, GroupByExpr, OrderByExpr, OrderBySort, Select, SelectItem,
    SelectItemQualifiedWildcardKind, Spanned,
};

use crate::error::SqlError;
use crate::expression::Expression;
use crate::expression::aggregate::Aggregate;
use crate::plan::array::ordered;
use crate::plan::bind::{Binder, alias_of, name_of, names_of};
use crate::plan::grouping::replace_groups;
use crate::plan::join::build;
use crate::plan::order::set_in_any_order;
use crate::plan::query::{Planned, sort_options};
use crate::plan::scope::Scope;
use crate::plan::window::{Expanded, Numbering, element_scope, with_elements};
use crate::plan::{Access, Fold, Node, SortKey, types};
use crate::session::Column;
use crate::value::{DataType, Value};

/// An output column before its place is known.
struct Item {
    name: String,
    expression: Expression,
    data_type: DataType,
    /// Set if the expression is a placeholder for the row number.
    numbering: Option<Numbering>,
}

impl Item {
    fn new(name: String, expression: Expression, data_type: DataType) -> Self {
        Self { name, expression, data_type, numbering: None }
    }

    /// Casts the column to the type in which rows are compared.
    fn compare_as_key(&mut self) {
        let expression = std::mem::replace(&mut self.expression, Expression::Column(0));
        self.expression = types::as_key(expression, self.data_type);
        self.data_type = types::of_keys(self.data_type);
    }
}

impl Binder {
    /// A SELECT with the ORDER BY of its query; the caller adds LIMIT.
    ///
    /// `limit` bounds the rows that the sort must keep.
    pub(super) fn select(
        &mut self,
        select: &Select,
        order_by: &[OrderByExpr],
        limit: Option<&Expression>,
    ) -> Result<Planned, SqlError> {
        check_supported(select)?;
        let from = self.from(&select.from)?;
        let mut scope = Rc::new(from.scope.clone());
        let outer_aggregates = self.aggregates.take();
        let conditions = match &select.selection {
            Some(condition) => self.condition(condition, &scope, "WHERE")?.into_conjuncts(),
            None => Vec::new(),
        };
        let expanded = self.expanded(&select.projection, &scope)?;
        if let Some(expanded) = &expanded {
            Rc::make_mut(&mut scope).append(element_scope(&expanded.arrays));
        }
        let projection =
            expanded.as_ref().map_or(&select.projection, |expanded| &expanded.projection);
        self.aggregates = Some(Vec::new());
        let (mut items, having) = self.items_and_having(select, projection, &scope)?;
        let visible = items.len();
        let mut order = self.order(order_by, &mut items, &scope)?;
        let aggregates = self.aggregates.take().unwrap_or_default();
        let keys = self.group_keys(&select.group_by, &items[..visible], &scope)?;
        self.aggregates = outer_aggregates;

        let grouped = !keys.is_empty() || !aggregates.is_empty() || having.is_some();
        let distinct_on = self.distinct_columns(select, &items, visible, &order)?;
        let numberings = numberings(&mut items);
        let direct =
            !grouped && select.distinct.is_none() && numberings.is_empty() && expanded.is_none();
        let wanted_order = if direct { on_input(&order, &items) } else { Vec::new() };
        let inner = aggregates.iter().flat_map(Aggregate::expressions);
        let outputs = items.iter().map(|item| &item.expression).chain(&having);
        let outputs = outputs.chain(keys.iter().map(|(key, _)| key));
        let arrays = expanded.iter().flat_map(|expanded| &expanded.arrays).map(|(array, _)| array);
        let inputs = conditions.iter().chain(from.conditions()).chain(arrays);
        let mut needed = columns_of(outputs.chain(inner).chain(inputs));
        // Columns after those of FROM are computed, not read.
        drop(needed.split_off(&from.scope.columns.len()));
        let joined = build(from, conditions, &needed, &wanted_order)?;
        let mut places = joined.places;
        let mut node = joined.node;
        if let Some(Expanded { arrays, .. }) = expanded {
            let count = places.len() + 3 * arrays.len();
            node = with_elements(node, &places, &needed, arrays);
            places = (0..count).collect();
        }
        let place = |column: usize| places[column];
        if grouped {
            let ungrouped = |column| self.ungrouped(column, select, order_by, &scope);
            node = group(node, &mut items, having, keys, aggregates, &ungrouped, &place)?;
        } else {
            for item in &mut items {
                let expression = std::mem::replace(&mut item.expression, Expression::Aggregate(0));
                item.expression = expression.renumbered(&place);
            }
        }
        let columns = items[..visible]
            .iter()
            .map(|item| Column { name: item.name.clone(), data_type: item.data_type })
            .collect();
        let hidden = items.len() > visible;
        let expressions: Vec<Expression> = items.into_iter().map(|item| item.expression).collect();
        node = numbered(projected(node, expressions), numberings);
        if joined.is_ordered {
            order.clear();
        }
        node = distinct_on.applied(node, order, limit, visible);
        if hidden {
            let expressions = (0..visible).map(Expression::Column).collect();
            node = Node::Project { input: Box::new(node), expressions };
        }
        Ok(Planned { node, columns })
    }

    /// The output columns and HAVING, both of which may contain aggregates.
    fn items_and_having(
        &mut self,
        select: &Select,
        projection: &[SelectItem],
        scope: &Rc<Scope>,
    ) -> Result<(Vec<Item>, Option<Expression>), SqlError> {
        let mut items = self.items(projection, scope)?;
        if !matches!(select.distinct, None | Some(Distinct::All)) {
            for item in &mut items {
                item.compare_as_key();
            }
        }
        let having = match &select.having {
            Some(condition) => Some(self.condition(condition, scope, "HAVING")?),
            None => None,
        };
        Ok((items, having))
    }

    /// The output columns of SELECT and RETURNING.
    fn items(
        &mut self,
        projection: &[SelectItem],
        scope: &Rc<Scope>,
    ) -> Result<Vec<Item>, SqlError> {
        let mut items = Vec::with_capacity(projection.len());
        for item in projection {
            match item {
                SelectItem::UnnamedExpr(expr) => {
                    items.push(self.item(output_name(expr), expr, scope)?);
                }
                SelectItem::ExprWithAlias { expr, alias } => {
                    items.push(self.item(alias_of(alias)?, expr, scope)?);
                }
                SelectItem::Wildcard(_) => {
                    if scope.columns.is_empty() {
                        let message = "SELECT * with no tables specified is not valid";
                        return Err(SqlError::new("42601", message));
                    }
                    items.extend(all_columns(scope, None));
                }
                SelectItem::QualifiedWildcard(
                    SelectItemQualifiedWildcardKind::ObjectName(name),
                    _,
                ) => {
                    let table = names_of(name)?.pop().unwrap_or_default();
                    if !scope.has_table(&table) {
                        return Err(scope.unknown(Some(&table), "*"));
                    }
                    items.extend(all_columns(scope, Some(&table)));
                }
                other => return Err(SqlError::unsupported(format_args!("the output {other}"))),
            }
        }
        Ok(items)
    }

    fn item(&mut self, name: String, expr: &Expr, scope: &Rc<Scope>) -> Result<Item, SqlError> {
        if let numbering @ Some(_) = self.numbering(expr, scope)? {
            let expression = Expression::Constant(Value::Null);
            return Ok(Item { name, expression, data_type: DataType::BigInt, numbering });
        }
        let (expression, data_type) = self.value(expr, scope)?;
        Ok(Item::new(name, expression, data_type))
    }

    /// The output columns of RETURNING, on the columns of a table.
    pub(super) fn returning(
        &mut self,
        projection: &[SelectItem],
        scope: &Rc<Scope>,
    ) -> Result<(Vec<Expression>, Vec<Column>), SqlError> {
        let items = self.items(projection, scope)?;
        if items.iter().any(|item| item.numbering.is_some()) {
            return Err(SqlError::unsupported("a window function in RETURNING"));
        }
        Ok(items
            .into_iter()
            .map(|item| {
                let column = Column { name: item.name, data_type: item.data_type };
                (item.expression, column)
            })
            .unzip())
    }

    /// The keys of ORDER BY as output columns. Other expressions are appended as hidden columns.
    fn order(
        &mut self,
        order_by: &[OrderByExpr],
        items: &mut Vec<Item>,
        scope: &Rc<Scope>,
    ) -> Result<Vec<SortKey>, SqlError> {
        let mut keys = Vec::with_capacity(order_by.len());
        for key in order_by {
            let (descending, nulls_first) = sort_options(key)?;
            let column = match output_column(&key.expr, items, "ORDER BY")? {
                Some(column) => column,
                None => {
                    let (expression, data_type) = self.value(&key.expr, scope)?;
                    let known = items.iter().position(|item| item.expression == expression);
                    known.unwrap_or_else(|| {
                        items.push(Item::new(String::new(), expression, data_type));
                        items.len() - 1
                    })
                }
            };
            ordered(items[column].data_type)?;
            let expression = types::as_key(Expression::Column(column), items[column].data_type);
            keys.push(SortKey { expression, descending, nulls_first });
        }
        Ok(keys)
    }

    fn group_keys(
        &mut self,
        group_by: &GroupByExpr,
        items: &[Item],
        scope: &Rc<Scope>,
    ) -> Result<Vec<(Expression, DataType)>, SqlError> {
        let GroupByExpr::Expressions(written, modifiers) = group_by else {
            return Err(SqlError::unsupported("GROUP BY ALL"));
        };
        if !modifiers.is_empty() {
            return Err(SqlError::unsupported("ROLLUP and its like"));
        }
        let mut keys = Vec::with_capacity(written.len());
        for expr in written {
            // A column of a table takes precedence over an output column of that name.
            let of_table = match expr {
                Expr::Identifier(ident) => scope.find(None, &name_of(ident))?,
                _ => None,
            };
            let output = match of_table {
                Some(_) => None,
                None => output_column(expr, items, "GROUP BY")?,
            };
            let key = match output {
                Some(column) => (items[column].expression.clone(), items[column].data_type),
                None => self.value(expr, scope)?,
            };
            if key.0.any(&|part| matches!(part, Expression::Aggregate(_))) {
                let message = "aggregate functions are not allowed in GROUP BY";
                let place = self.position(expr.span());
                return Err(SqlError::new("42803", message).with_position(place));
            }
            keys.push(key);
        }
        Ok(keys)
    }

    fn distinct_columns(
        &mut self,
        select: &Select,
        items: &[Item],
        visible: usize,
        order: &[SortKey],
    ) -> Result<DistinctColumns, SqlError> {
        match &select.distinct {
            None | Some(Distinct::All) => Ok(DistinctColumns::None),
            Some(Distinct::Distinct) if items.len() > visible => Err(SqlError::new(
                "42P10",
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
            )),
            Some(Distinct::Distinct) => Ok(DistinctColumns::All),
            Some(Distinct::On(exprs)) => {
                let mut keys = Vec::with_capacity(exprs.len());
                for (number, expr) in exprs.iter().enumerate() {
                    let column = output_column(expr, items, "DISTINCT ON")?;
                    let column = column.ok_or_else(|| {
                        SqlError::unsupported(
                            "DISTINCT ON of an expression that is no output column",
                        )
                    })?;
                    let sorted = order
                        .get(number)
                        .is_none_or(|key| key.expression == Expression::Column(column));
                    if !sorted {
                        return Err(SqlError::new(
                            "42P10",
                            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
                        ));
                    }
                    keys.push(column);
                }
                Ok(DistinctColumns::On(keys))
            }
        }
    }
}

enum DistinctColumns {
    None,
    All,
    On(Vec<usize>),
}

impl DistinctColumns {
    /// Sorts rows, and removes the duplicates for DISTINCT.
    fn applied(
        self,
        node: Node,
        order: Vec<SortKey>,
        limit: Option<&Expression>,
        visible: usize,
    ) -> Node {
        match self {
            Self::None => sorted(node, order, limit),
            Self::All => {
                let input = Box::new(node);
                let distinct = Node::Distinct { input, columns: visible, is_sorted: false };
                sorted(distinct, order, None)
            }
            Self::On(keys) => {
                // The order begins with some of the DISTINCT columns; the others make duplicates adjacent.
                let mut order = order;
                order.extend(keys.iter().skip(order.len()).map(|column| SortKey::of(*column)));
                distinct_rows(sorted(node, order, None), keys, visible)
            }
        }
    }
}

fn check_supported(select: &Select) -> Result<(), SqlError> {
    let unsupported = [
        (select.into.is_some(), "SELECT INTO"),
        (select.top.is_some(), "TOP"),
        (!select.named_window.is_empty(), "WINDOW"),
        (select.qualify.is_some(), "QUALIFY"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (select.prewhere.is_some(), "PREWHERE"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.cluster_by.is_empty(), "CLUSTER BY"),
        (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
        (!select.sort_by.is_empty(), "SORT BY"),
        (select.exclude.is_some(), "EXCLUDE"),
        (select.value_table_mode.is_some(), "AS STRUCT"),
    ];
    match unsupported.iter().find(|(present, _)| *present) {
        Some((_, construct)) => Err(SqlError::unsupported(construct)),
        None => Ok(()),
    }
}

/// The name of an output column without an alias, as PostgreSQL chooses it.
pub(super) fn output_name(expr: &Expr) -> String {
    match expr {
        Expr::Identifier(ident) => name_of(ident),
        Expr::CompoundIdentifier(idents) => idents.last().map(name_of).unwrap_or_default(),
        Expr::Function(call) => {
            names_of(&call.name).ok().and_then(|mut names| names.pop()).unwrap_or_default()
        }
        Expr::Cast { expr, data_type, .. } => match &**expr {
            Expr::Value(_) => cast_name(data_type),
            other => output_name(other),
        },
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => output_name(inner),
        Expr::Case { else_result: Some(otherwise), .. } => match output_name(otherwise) {
            name if name == "?column?" => "case".to_owned(),
            name => name,
        },
        Expr::Case { .. } => "case".to_owned(),
        Expr::Exists { .. } => "exists".to_owned(),
        Expr::TypedString(string) => cast_name(&string.data_type),
        Expr::AtTimeZone { .. } => "timezone".to_owned(),
        Expr::Extract { .. } => "extract".to_owned(),
        Expr::Substring { .. } => "substring".to_owned(),
        Expr::Position { .. } => "position".to_owned(),
        Expr::Trim { .. } => "btrim".to_owned(),
        Expr::Ceil { .. } => "ceil".to_owned(),
        Expr::Floor { .. } => "floor".to_owned(),
        Expr::Value(value) if matches!(value.value, ast::Value::Boolean(_)) => "bool".to_owned(),
        Expr::Subquery(query) => match &*query.body {
            ast::SetExpr::Select(select) => match select.projection.first() {
                Some(SelectItem::UnnamedExpr(expr)) => output_name(expr),
                Some(SelectItem::ExprWithAlias { alias, .. }) => name_of(alias),
                _ => "?column?".to_owned(),
            },
            _ => "?column?".to_owned(),
        },
        _ => "?column?".to_owned(),
    }
}

fn cast_name(data_type: &ast::DataType) -> String {
    match types::from_written(data_type) {
        Ok(DataType::SmallInt) => "int2".to_owned(),
        Ok(DataType::Integer) => "int4".to_owned(),
        Ok(DataType::BigInt) => "int8".to_owned(),
        Ok(DataType::Real) => "float4".to_owned(),
        Ok(DataType::Double) => "float8".to_owned(),
        Ok(DataType::Boolean) => "bool".to_owned(),
        Ok(DataType::Varchar(_)) => "varchar".to_owned(),
        Ok(DataType::Char(_) | DataType::Padded) => "bpchar".to_owned(),
        Ok(DataType::Timestamp) => "timestamp".to_owned(),
        Ok(DataType::TimestampTz) => "timestamptz".to_owned(),
        Ok(other) => other.base_name().to_owned(),
        Err(_) => "?column?".to_owned(),
    }
}

fn all_columns(scope: &Scope, table: Option<&str>) -> Vec<Item> {
    let columns = scope.columns.iter().enumerate();
    let chosen = columns.filter(|(_, column)| match table {
        Some(table) => column.table.as_deref() == Some(table),
        None => !column.hidden,
    });
    chosen
        .map(|(number, column)| {
            Item::new(column.name.clone(), Expression::Column(number), column.data_type)
        })
        .collect()
}

/// The output column that a number or a name in ORDER BY and GROUP BY denotes.
fn output_column(expr: &Expr, items: &[Item], clause: &str) -> Result<Option<usize>, SqlError> {
    match expr {
        Expr::Value(value) => match &value.value {
            ast::Value::Number(digits, _) => {
                let number = digits.parse::<usize>().ok().filter(|n| (1..=items.len()).contains(n));
                let message = format!("{clause} position {digits} is not in select list");
                number.map(|number| Some(number - 1)).ok_or_else(|| SqlError::new("42P10", message))
            }
            _ => Ok(None),
        },
        Expr::Identifier(ident) => {
            let name = name_of(ident);
            let mut found = items.iter().enumerate().filter(|(_, item)| item.name == name);
            let Some((number, first)) = found.next() else { return Ok(None) };
            if found.any(|(_, other)| other.expression != first.expression) {
                let message = format!("{clause} \"{name}\" is ambiguous");
                return Err(SqlError::new("42702", message));
            }
            Ok(Some(number))
        }
        _ => Ok(None),
    }
}

/// The keys as expressions on the input, if all of them are columns of the input.
fn on_input(order: &[SortKey], items: &[Item]) -> Vec<SortKey> {
    let on_input = |key: &SortKey| match &key.expression {
        Expression::Column(column) => match &items[*column].expression {
            column @ Expression::Column(_) => {
                Some(SortKey { expression: column.clone(), ..key.clone() })
            }
            _ => None,
        },
        _ => None,
    };
    order.iter().map(on_input).collect::<Option<Vec<SortKey>>>().unwrap_or_default()
}

/// The columns in some expressions.
fn columns_of<'e>(expressions: impl Iterator<Item = &'e Expression>) -> BTreeSet<usize> {
    let mut columns = BTreeSet::new();
    for expression in expressions {
        expression.for_each_column(&mut |column| {
            columns.insert(column);
        });
    }
    columns
}

/// Groups of rows. All rows of a range of an index are counted without being read, and those of a table are aggregated where they are.
fn aggregated(input: Node, keys: Vec<(Expression, DataType)>, aggregates: Vec<Aggregate>) -> Node {
    let have_one_form = keys.iter().all(|(_, data_type)| types::has_one_form(*data_type));
    let keys: Vec<Expression> =
        keys.into_iter().map(|(key, data_type)| types::as_key(key, data_type)).collect();
    let counts_rows = matches!(&aggregates[..], [only] if only.counts_rows());
    match input {
        Node::Scan(scan)
            if keys.is_empty()
                && counts_rows
                && scan.filter.is_none()
                && !matches!(scan.access, Access::Points { .. }) =>
        {
            Node::Count(scan)
        }
        Node::Scan(scan) if have_one_form && Fold::is_possible(&scan, &keys, &aggregates) => {
            Node::Fold(Box::new(Fold::new(*scan, keys, aggregates)))
        }
        mut input => {
            if have_one_form {
                set_in_any_order(&mut input, &keys, &aggregates);
            }
            Node::Aggregate { input: Box::new(input), keys, aggregates }
        }
    }
}

/// Groups rows; afterwards the output columns are on groups.
fn group(
    input: Node,
    items: &mut [Item],
    mut having: Option<Expression>,
    keys: Vec<(Expression, DataType)>,
    mut aggregates: Vec<Aggregate>,
    ungrouped: &impl Fn(usize) -> SqlError,
    place: &impl Fn(usize) -> usize,
) -> Result<Node, SqlError> {
    let (keys, key_types): (Vec<Expression>, Vec<DataType>) = keys.into_iter().unzip();
    for expression in items.iter_mut().map(|item| &mut item.expression).chain(&mut having) {
        replace_groups(expression, &keys, ungrouped)?;
    }
    for aggregate in &mut aggregates {
        let keys = aggregate.order.iter_mut().map(|key| &mut key.expression);
        let parts = [&mut aggregate.argument, &mut aggregate.separator, &mut aggregate.filter];
        for part in parts.into_iter().flatten().chain(keys) {
            *part = part.clone().renumbered(place);
        }
    }
    let keys = keys.into_iter().map(|key| key.renumbered(place)).zip(key_types).collect();
    let node = aggregated(input, keys, aggregates);
    Ok(match having {
        Some(condition) => Node::Filter { input: Box::new(node), condition },
        None => node,
    })
}

/// The row numbers to compute: the column of the number, those of the partition, and the order. The columns of the last two
/// are appended as hidden columns.
fn numberings(items: &mut Vec<Item>) -> Vec<(usize, Vec<usize>, Vec<SortKey>)> {
    let mut found = Vec::new();
    for column in 0..items.len() {
        let Some(Numbering { partition, order }) = items[column].numbering.take() else { continue };
        let mut add = |expression, data_type| {
            items.push(Item::new(String::new(), expression, data_type));
            items.len() - 1
        };
        let partition: Vec<usize> = partition
            .into_iter()
            .map(|(expression, data_type)| add(expression, data_type))
            .collect();
        let mut keys: Vec<SortKey> = partition.iter().map(|column| SortKey::of(*column)).collect();
        for (expression, data_type, options) in order {
            let expression = Expression::Column(add(expression, data_type));
            keys.push(SortKey { expression, ..options });
        }
        found.push((column, partition, keys));
    }
    found
}

/// Sorts and numbers rows.
fn numbered(mut node: Node, numberings: Vec<(usize, Vec<usize>, Vec<SortKey>)>) -> Node {
    for (column, partition, keys) in numberings {
        let input = Box::new(sorted(node, keys, None));
        node = Node::RowNumber { input, column, partition };
    }
    node
}

/// A projection, unless it changes nothing and the width is known.
fn projected(node: Node, expressions: Vec<Expression>) -> Node {
    if let Node::Values(rows) = &node
        && rows.len() == 1
        && rows[0].is_empty()
    {
        return Node::Values(vec![expressions]);
    }
    Node::Project { input: Box::new(node), expressions }
}

/// Sorts, if there are keys.
pub(super) fn sorted(node: Node, keys: Vec<SortKey>, limit: Option<&Expression>) -> Node {
    if keys.is_empty() || node.is_one_row() {
        return node;
    }
    Node::Sort { input: Box::new(node), keys, limit: limit.cloned() }
}

/// The first row of each group of adjacent rows with equal keys.
fn distinct_rows(node: Node, keys: Vec<usize>, visible: usize) -> Node {
    // DISTINCT compares the first columns, so the keys move there and back.
    let count = keys.len();
    let width = visible;
    let front = keys.into_iter().map(Expression::Column);
    let expressions = front.chain((0..width).map(Expression::Column)).collect();
    let input = Box::new(Node::Project { input: Box::new(node), expressions });
    let input = Box::new(Node::Distinct { input, columns: count, is_sorted: true });
    let expressions = (count..count + width).map(Expression::Column).collect();
    Node::Project { input, expressions }
}

/// Whether the order is descending; an operator is refused.
pub(super) fn is_descending(sort: Option<&OrderBySort>) -> Result<bool, SqlError> {
    match sort {
        None | Some(OrderBySort::Asc) => Ok(false),
        Some(OrderBySort::Desc) => Ok(true),
        Some(OrderBySort::Using(_)) => Err(SqlError::unsupported("ORDER BY USING")),
    }
}
