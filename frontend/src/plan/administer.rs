//! CALL of a procedure of operators: nodes are added, drained, removed, given up and restarted.
//!
//! *Invariants*: nothing is looked up: whether a node is there, the engine tells when the procedure runs. Arguments are
//! constants, without names. No schema but `pg_catalog` may stand before the name.
//!
//! *Source*: `docs/sql.md`, "The nodes of the cluster".
//!
//! *Not here*: when and where a procedure runs (`session/administer`); what follows, in `gannet_engine`.

use sqlparser::ast::{
    self, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator, Value as Literal,
};

use crate::error::SqlError;
use crate::plan::bind::names_of;

/// What an operator does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Administration {
    /// A node is drained, or gets its share again.
    Drain { node: u16, is_drained: bool },
    /// A node is removed, perhaps with the last copy of rows.
    Remove { node: u16, loses_rows: bool },
    /// Nodes that had a majority are given up, and a node that is left decides on the membership without them.
    GiveUp { nodes: Vec<u16> },
    /// A node's process stops, and the program that has started it starts it again.
    Restart { node: u16 },
}

/// The procedures, as a message lists them.
const PROCEDURES: &str = "there are gannet_add_node(node), gannet_drain_node(node), gannet_cancel_drain(node), gannet_remove_node(node [, loses_rows]), gannet_give_up_nodes(node, ...) and gannet_restart_node(node)";

/// What a CALL says.
pub(super) fn administration(call: &ast::Function) -> Result<Administration, SqlError> {
    let name = names_of(&call.name)?;
    let arguments = arguments(call)?;
    let unknown = || {
        let written: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        let text = format!("{}({})", name.join("."), written.join(", "));
        SqlError::new("42883", format!("procedure {text} does not exist")).with_hint(PROCEDURES)
    };
    let (name, qualifier) = match &name[..] {
        [name] => (name.as_str(), None),
        [schema, name] => (name.as_str(), Some(schema.as_str())),
        _ => return Err(unknown()),
    };
    if qualifier.is_some_and(|schema| schema != "pg_catalog") {
        return Err(unknown());
    }
    match (name, &arguments[..]) {
        ("gannet_drain_node", [node]) => {
            Ok(Administration::Drain { node: number(node)?, is_drained: true })
        }
        ("gannet_add_node" | "gannet_cancel_drain", [node]) => {
            Ok(Administration::Drain { node: number(node)?, is_drained: false })
        }
        ("gannet_restart_node", [node]) => Ok(Administration::Restart { node: number(node)? }),
        ("gannet_give_up_nodes", nodes @ [_, ..]) => {
            let nodes = nodes.iter().map(|node| number(node)).collect::<Result<_, _>>()?;
            Ok(Administration::GiveUp { nodes })
        }
        ("gannet_remove_node", [node]) => {
            Ok(Administration::Remove { node: number(node)?, loses_rows: false })
        }
        ("gannet_remove_node", [node, loses_rows]) => {
            let loses_rows = match loses_rows {
                Expr::Value(value) => match value.value {
                    Literal::Boolean(loses_rows) => loses_rows,
                    _ => return Err(unknown()),
                },
                _ => return Err(unknown()),
            };
            Ok(Administration::Remove { node: number(node)?, loses_rows })
        }
        _ => Err(unknown()),
    }
}

fn arguments(call: &ast::Function) -> Result<Vec<&Expr>, SqlError> {
    let FunctionArguments::List(list) = &call.args else { return Ok(Vec::new()) };
    let argument = |argument| match argument {
        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref value)) => Ok(value),
        other => Err(SqlError::unsupported(format_args!("the argument {other} of CALL"))),
    };
    list.args.iter().map(argument).collect()
}

/// The number of a node.
fn number(argument: &Expr) -> Result<u16, SqlError> {
    let out_of_range = || {
        SqlError::new("22023", format!("there is no node {argument}"))
            .with_hint("name a node by its number in gannet_nodes")
    };
    match argument {
        Expr::Value(value) => match &value.value {
            Literal::Number(text, _) => text.parse().map_err(|_| out_of_range()),
            _ => Err(out_of_range()),
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, .. } => Err(out_of_range()),
        _ => Err(SqlError::unsupported("CALL with an argument that is no number")),
    }
}
