//! EXPLAIN: a plan as text, with the access to every table.
//!
//! *Invariants*: the text follows from the plan alone. A line is a node, and its inputs are below it, further to the
//! right; a projection has no line. A column of a table has its name, that of another input its number, from 1. Where a
//! statement chooses between two ways when it runs, both are shown.
//!
//! *Source*: PostgreSQL 15, section 14.1, for the form; `docs/sql.md`, "Joins" and "Aggregates", for the names.
//!
//! *Not here*: what EXPLAIN ANALYZE measures (`execute`).

use crate::expression::{Expression, SubqueryKind};
use crate::plan::{Access, IndexRange, Join, Node, Plan, PlanKind, Scan, SetOperation};
use crate::value::Value;

/// The lines of EXPLAIN.
pub(crate) fn lines(plan: &Plan) -> Vec<String> {
    let mut lines = Lines::default();
    match &plan.kind {
        PlanKind::Query(node) => lines.node(node, 0),
        PlanKind::Insert(insert) => {
            lines.push(0, format!("Insert on {}", insert.rules.table.name));
            lines.node(&insert.source, 1);
        }
        PlanKind::Update(update) => {
            lines.push(0, format!("Update on {}", update.rules.table.name));
            lines.node(&update.source, 1);
        }
        PlanKind::Delete(delete) => {
            lines.push(0, format!("Delete on {}", delete.table.name));
            lines.node(&delete.source, 1);
        }
        PlanKind::Define(_) => lines.push(0, "Definition".to_owned()),
        PlanKind::Explain { plan, .. } => return self::lines(plan),
    }
    lines.lines
}

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
}

impl Lines {
    fn push(&mut self, level: usize, text: String) {
        let arrow = if level == 0 { "" } else { "-> " };
        let indent = "   ".repeat(level.saturating_sub(1));
        let first = if level == 0 { "" } else { "  " };
        self.lines.push(format!("{first}{indent}{arrow}{text}"));
    }

    fn node(&mut self, node: &Node, level: usize) {
        let text = match node {
            Node::Values(rows) if rows.len() == 1 => "Result".to_owned(),
            Node::Values(rows) => format!("Values ({} rows)", rows.len()),
            Node::Scan(scan) => scan_text(scan, None),
            Node::Count(scan) => format!("Count by {}", scan_text(scan, None)),
            Node::System { relation, .. } => format!("System Scan on {}", relation.name),
            Node::Series(_) => "Function Scan on generate_series".to_owned(),
            Node::Filter { condition, .. } => format!("Filter ({})", text(condition)),
            Node::Project { input, .. } => {
                self.node(input, level);
                return self.subqueries(node, level);
            }
            Node::Lookup { keep_left, .. } => {
                format!("Lookup Join{}", if *keep_left { " (left)" } else { "" })
            }
            Node::Join(join) => join_text(join),
            Node::Aggregate { keys, .. } => aggregate_text(keys),
            Node::Fold(fold) => aggregate_text(&fold.keys),
            Node::Sort { limit: Some(_), .. } => "Top Sort".to_owned(),
            Node::Sort { .. } => "Sort".to_owned(),
            Node::Limit { .. } => "Limit".to_owned(),
            Node::RowNumber { .. } => "Row Number".to_owned(),
            Node::Elements { .. } => "Elements of Arrays".to_owned(),
            Node::Distinct { .. } => "Distinct".to_owned(),
            Node::SetOperation { operation, .. } => match operation {
                None => "Union All",
                Some(SetOperation::Intersect) => "Intersect",
                Some(SetOperation::IntersectAll) => "Intersect All",
                Some(SetOperation::Except) => "Except",
                Some(SetOperation::ExceptAll) => "Except All",
            }
            .to_owned(),
        };
        self.push(level, text);
        self.subqueries(node, level);
        for input in node.inputs() {
            self.node(input, level + 1);
        }
        if let Node::Fold(fold) = node {
            let whole = fold.scan.whole.as_deref();
            let scan = scan_text(whole.unwrap_or(&fold.scan), None);
            let partial = format!("Partial Aggregate at Primaries by {scan}");
            if whole.is_some() {
                self.push(level + 1, scan_text(&fold.scan, None));
                self.push(level + 1, format!("or, for many rows, {partial}"));
            } else {
                self.push(level + 1, partial);
            }
        }
        if let Node::Lookup { left, scan, .. } = node {
            self.push(level + 1, scan_text(scan, Some(left)));
        }
    }

    fn subqueries(&mut self, node: &Node, level: usize) {
        for expression in node.expressions() {
            self.expression(expression, level);
        }
    }

    fn expression(&mut self, expression: &Expression, level: usize) {
        if let Expression::Subquery(query) = expression {
            let kind = match query.kind {
                SubqueryKind::Scalar => "Subquery",
                SubqueryKind::Exists => "Exists Subquery",
                SubqueryKind::Any(..) => "Any Subquery",
            };
            let correlated = if query.arguments.is_empty() { "" } else { " (correlated)" };
            self.push(level + 1, format!("{kind}{correlated}"));
            self.node(&query.subquery.node, level + 2);
        }
        expression.parts().into_iter().for_each(|part| self.expression(part, level));
    }
}

fn aggregate_text(keys: &[Expression]) -> String {
    match keys.len() {
        0 => "Aggregate".to_owned(),
        keys => format!("Group Aggregate by {keys} keys"),
    }
}

fn join_text(join: &Join) -> String {
    let kind = match (join.keep_left, join.keep_right) {
        (false, false) => "",
        (true, false) => " (left)",
        (false, true) => " (right)",
        (true, true) => " (full)",
    };
    let name = if join.keys.is_empty() { "Nested Loop Join" } else { "Hash Join" };
    format!("{name}{kind}")
}

fn scan_text(scan: &Scan, outer: Option<&Node>) -> String {
    let table = &*scan.table;
    let relation = if scan.alias == table.name {
        table.name.clone()
    } else {
        format!("{} {}", table.name, scan.alias)
    };
    let outer = if outer.is_some() { " per outer row" } else { "" };
    let mut line = match &scan.access {
        Access::Points { index, columns } => {
            let many = columns.iter().any(|list| list.len() > 1);
            let name = if many { "Multi Get" } else { "Point Get" };
            let conditions = index.columns(table).iter().zip(columns).map(|(column, list)| {
                let name = &table.columns[*column].name;
                let values: Vec<String> = list.iter().map(text).collect();
                match values.as_slice() {
                    [value] => format!("{name} = {value}"),
                    values => format!("{name} IN ({})", values.join(", ")),
                }
            });
            let conditions: Vec<String> = conditions.collect();
            let using = index.name(table);
            format!("{name} on {relation} using {using} ({})", conditions.join(" AND "))
        }
        Access::Range(range) => {
            let using = range.index.name(table);
            let backwards = if range.descending { " Backward" } else { "" };
            let conditions = range_text(scan, range);
            format!("Index Range Scan{backwards} on {relation} using {using}{conditions}")
        }
        Access::Full if scan.in_any_order => format!("Full Scan on {relation} in any order"),
        Access::Full => format!("Full Scan on {relation}"),
    };
    line.push_str(outer);
    if let Some(filter) = &scan.filter {
        line.push_str(&format!(" filter ({})", named(filter, scan)));
    }
    line
}

fn range_text(scan: &Scan, range: &IndexRange) -> String {
    let table = &*scan.table;
    let columns = range.index.columns(table);
    let name = |number: usize| columns.get(number).map_or("", |c| &table.columns[*c].name);
    let mut conditions: Vec<String> = range
        .prefix
        .iter()
        .enumerate()
        .map(|(number, value)| format!("{} = {}", name(number), text(value)))
        .collect();
    let next = name(range.prefix.len());
    if let Some((bound, included)) = &range.lower {
        let symbol = if *included { ">=" } else { ">" };
        conditions.push(format!("{next} {symbol} {}", text(bound)));
    }
    if let Some((bound, included)) = &range.upper {
        let symbol = if *included { "<=" } else { "<" };
        conditions.push(format!("{next} {symbol} {}", text(bound)));
    }
    if conditions.is_empty() { String::new() } else { format!(" ({})", conditions.join(" AND ")) }
}

/// An expression on the columns of a scan.
fn named(expression: &Expression, scan: &Scan) -> String {
    shown(expression, &|column| {
        scan.table.columns.get(column).map_or_else(|| format!("#{column}"), |c| c.name.clone())
    })
}

fn text(expression: &Expression) -> String {
    shown(expression, &|column| format!("#{}", column + 1))
}

fn shown(expression: &Expression, name: &impl Fn(usize) -> String) -> String {
    let list = |parts: &[Expression], between: &str| {
        let parts: Vec<String> = parts.iter().map(|part| shown(part, name)).collect();
        parts.join(between)
    };
    match expression {
        Expression::Constant(Value::Null) => "NULL".to_owned(),
        Expression::Constant(Value::Text(text)) => format!("'{}'", text.replace('\'', "''")),
        Expression::Constant(value) => value.to_text(crate::value::DataType::Text),
        Expression::Column(column) => name(*column),
        Expression::Outer(number) => format!("outer #{}", number + 1),
        Expression::Parameter(number) => format!("${}", number + 1),
        Expression::And(parts) => format!("({})", list(parts, " AND ")),
        Expression::Or(parts) => format!("({})", list(parts, " OR ")),
        Expression::Not(part) => format!("NOT {}", shown(part, name)),
        Expression::IsNull(part) => format!("{} IS NULL", shown(part, name)),
        Expression::Is(part, true) => format!("{} IS TRUE", shown(part, name)),
        Expression::Is(part, false) => format!("{} IS FALSE", shown(part, name)),
        Expression::Compare(comparison, a, b) => {
            format!("{} {} {}", shown(a, name), comparison.symbol(), shown(b, name))
        }
        Expression::Same(a, b) => {
            format!("{} IS NOT DISTINCT FROM {}", shown(a, name), shown(b, name))
        }
        Expression::Arithmetic(operator, _, a, b) => {
            format!("({} {} {})", shown(a, name), operator.symbol(), shown(b, name))
        }
        Expression::AddInterval(part, _) => format!("{} + interval", shown(part, name)),
        Expression::Match(matching) => {
            format!("{} ~~ {}", shown(&matching.value, name), shown(&matching.pattern, name))
        }
        Expression::In(value, members, _) => {
            format!("{} IN ({})", shown(value, name), list(members, ", "))
        }
        Expression::Case(..) => "CASE".to_owned(),
        Expression::Coalesce(parts) => format!("COALESCE({})", list(parts, ", ")),
        Expression::Cast(cast) => format!("{}::{}", shown(&cast.operand, name), cast.to.name()),
        Expression::Call(function, _, parts) => {
            format!("{}({})", format!("{function:?}").to_lowercase(), list(parts, ", "))
        }
        Expression::Once(_, part) => shown(part, name),
        Expression::NextValue(_) => "nextval".to_owned(),
        Expression::TokenOutcome(token) => format!("gannet_outcome({})", shown(token, name)),
        Expression::Subquery(_) => "subquery".to_owned(),
        Expression::Aggregate(_) => "aggregate".to_owned(),
    }
}
