//! Parsing and planning, on a stack that suffices for every text that is let through.
//!
//! ```text
//! text ─► bounds: size, nesting, chains of operators ─► tokens, in PostgreSQL's dialect ─► sqlparser ─► Parsed
//!
//! short text   the session's own thread, on a large stack (`stacks`): a hand-over to another thread takes longer
//! other text   the parser's thread: it would hold the session's thread for long
//! ```
//!
//! The parser recurses, and so does the code that drops its trees: five nested parentheses would overflow a coroutine's
//! stack.
//!
//! *Invariants*: a text is parsed only after its size, its nesting and its chains of operators were found within bounds. A
//! panic ends the statement, and not the thread.
//!
//! *Not here*: where the dialect differs from the parser's (`dialect`), and plans (`plan`).

mod dialect;
mod stacks;

use std::sync::mpsc::{Sender, channel};

use futures_channel::oneshot;
use gannet_engine::block_on;
use sqlparser::ast::{Expr, Statement};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser as SqlParser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

pub(crate) use dialect::Maintenance;

use crate::error::SqlError;
use crate::parser::stacks::Stacks;

/// The name of the thread.
pub(crate) const THREAD: &str = "gannet-parser";
/// Bytes of a statement.
const STATEMENT_BYTES_MAX: usize = 1 << 20;
/// Bytes of a text of several statements.
const SCRIPT_BYTES_MAX: usize = 4 << 20;
/// Open parentheses, brackets and CASEs at a time.
const NESTING_MAX: usize = 64;
/// Operators in a row; a tree of them is as deep.
const CHAIN_MAX: usize = 4_000;
/// Recursion inside the parser: a few levels for each level of the text.
const RECURSION_MAX: usize = 200;
/// A stack: about 20 KiB for each operator of the longest chain.
const STACK_BYTES: usize = 256 << 20;
/// Bytes of a text that is parsed and planned in a fraction of a millisecond.
const SHORT_BYTES_MAX: usize = 2 << 10;

static DIALECT: PostgreSqlDialect = PostgreSqlDialect {};

type Job = Box<dyn FnOnce() + Send>;

/// The thread that parses and plans, and the stacks on which others do.
pub(crate) struct Parser {
    stacks: Stacks,
    jobs: Sender<Job>,
    /// Whether a session blocks while its statement is planned, as in a simulation, where the duration must not matter.
    blocks: bool,
}

impl Parser {
    /// Starts the thread; it ends when the parser is dropped.
    ///
    /// # Errors
    /// SQLSTATE 53000 if the system refuses a thread.
    pub(crate) fn start(blocks: bool) -> Result<Self, SqlError> {
        let (jobs, queue) = channel::<Job>();
        let run = move || {
            for job in queue {
                // A panic drops the sender, which ends the statement, and not the thread.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            }
        };
        std::thread::Builder::new()
            .name(THREAD.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(run)
            .map_err(|error| SqlError::new("53000", format!("no thread to parse on: {error}")))?;
        Ok(Self { stacks: Stacks::new(), jobs, blocks })
    }

    /// Runs a job that parses and plans a text of so many bytes.
    ///
    /// # Errors
    /// The job's, and SQLSTATE XX000 if it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        text_bytes: usize,
        job: impl FnOnce() -> Result<T, SqlError> + Send + 'static,
    ) -> Result<T, SqlError> {
        let lost = || SqlError::new("XX000", "the statement could not be planned");
        if text_bytes <= SHORT_BYTES_MAX
            && let Some(stack) = self.stacks.take()
        {
            return self.stacks.run(stack, job).ok_or_else(lost)?;
        }
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(move || {
            // The receiver is gone if the session has given up.
            let _ = sender.send(job());
        });
        self.jobs.send(job).map_err(|_| lost())?;
        let planned = if self.blocks { block_on(receiver) } else { receiver.await };
        planned.map_err(|_| lost())?
    }
}

/// A statement as syntax.
pub(crate) enum Parsed {
    /// One that the parser knows.
    Statement(Box<Statement>),
    /// VACUUM or ANALYZE.
    Maintenance(Maintenance),
}

/// The only statement of a text; None if the text has none.
///
/// # Errors
/// SQLSTATE 42601 for a syntax error or several statements, 54001 and 54000 for a text that is too large.
pub(crate) fn parse(sql: &str) -> Result<Option<Parsed>, SqlError> {
    let mut tokens = statement_tokens(sql)?;
    if tokens.iter().all(|token| is_space(&token.token) || token.token == Token::SemiColon) {
        return Ok(None);
    }
    dialect::spell_out_truth(&mut tokens);
    let mut parser = parser(tokens);
    let statement = match dialect::maintenance(&mut parser) {
        Ok(None) => parser.parse_statement().map(|known| Parsed::Statement(Box::new(known))),
        Ok(Some(maintenance)) => Ok(Parsed::Maintenance(maintenance)),
        Err(error) => Err(error),
    };
    let statement = statement.map_err(|error| syntax_error(&error, sql))?;
    while parser.consume_token(&Token::SemiColon) {}
    let next = parser.peek_token();
    if next.token == Token::EOF {
        return Ok(Some(statement));
    }
    let message = format!("syntax error at or near \"{}\"", next.token);
    Err(SqlError::new("42601", message).with_position(position(sql, next.span.start)))
}

/// An expression that the catalog stores as text.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_expression(sql: &str) -> Result<Expr, SqlError> {
    let tokens = statement_tokens(sql)?;
    parser(tokens).parse_expr().map_err(|error| syntax_error(&error, sql))
}

/// The tokens that the parser gets.
fn statement_tokens(sql: &str) -> Result<Vec<TokenWithSpan>, SqlError> {
    let mut tokens = tokens(sql)?;
    dialect::part_signs(&mut tokens);
    dialect::join_strings(&mut tokens).map_err(|(place, text)| {
        let message = format!("syntax error at or near \"{text}\"");
        SqlError::new("42601", message).with_position(position(sql, place))
    })?;
    check(&tokens)?;
    Ok(tokens)
}

fn parser(tokens: Vec<TokenWithSpan>) -> SqlParser<'static> {
    SqlParser::new(&DIALECT).with_recursion_limit(RECURSION_MAX).with_tokens_with_locations(tokens)
}

/// The statements of a text, each with its offset in characters.
///
/// # Errors
/// SQLSTATE 42601 for a text that cannot be split into words, 54001 for a text that is too long.
pub(crate) fn split(sql: &str) -> Result<Vec<(usize, String)>, SqlError> {
    if sql.len() > SCRIPT_BYTES_MAX {
        let length = sql.len();
        let message =
            format!("the statements have {length} bytes together; the limit is {SCRIPT_BYTES_MAX}");
        return Err(SqlError::new("54001", message).with_hint("send fewer of them at a time"));
    }
    let mut tokens = Vec::new();
    let result = Tokenizer::new(&DIALECT, sql).tokenize_with_location_into_buf(&mut tokens);
    if let Err(error) = result {
        return Err(tokenizer_error(&error.message, sql, error.location));
    }
    let mut statements = Vec::new();
    let mut start: Option<(usize, usize)> = None;
    let mut push = |(start, characters): (usize, usize), end: Option<usize>| {
        let text = &sql[start..end.unwrap_or(sql.len())];
        statements.push((characters, text.trim_end().to_owned()));
    };
    // Tokens are in order, so one pass over the text suffices.
    let mut rest = sql.char_indices().peekable();
    let (mut place, mut characters) = ((1, 1), 0);
    for token in &tokens {
        let Location { line, column } = token.span.start;
        while place < (line, column)
            && let Some((_, character)) = rest.next()
        {
            characters += 1;
            place = if character == '\n' { (place.0 + 1, 1) } else { (place.0, place.1 + 1) };
        }
        let at = rest.peek().map_or(sql.len(), |(at, _)| *at);
        if token.token == Token::SemiColon {
            if let Some(start) = start.take() {
                push(start, Some(at));
            }
        } else if !is_space(&token.token) && start.is_none() {
            start = Some((at, characters));
        }
    }
    if let Some(start) = start {
        push(start, None);
    }
    Ok(statements)
}

/// The byte at which each line begins.
fn line_starts(sql: &str) -> Vec<usize> {
    std::iter::once(0).chain(sql.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

fn byte_of(sql: &str, starts: &[usize], location: Location) -> usize {
    let line = usize::try_from(location.line).unwrap_or(1).saturating_sub(1);
    let column = usize::try_from(location.column).unwrap_or(1).saturating_sub(1);
    let start = starts.get(line).copied().unwrap_or(sql.len());
    let rest = &sql[start..];
    start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
}

fn is_space(token: &Token) -> bool {
    matches!(token, Token::Whitespace(_) | Token::EOF)
}

fn tokens(sql: &str) -> Result<Vec<TokenWithSpan>, SqlError> {
    if sql.len() > STATEMENT_BYTES_MAX {
        let message =
            format!("the statement has {} bytes; the limit is {STATEMENT_BYTES_MAX}", sql.len());
        return Err(SqlError::new("54001", message)
            .with_hint("split it, use parameters for large values, or COPY for many rows"));
    }
    Tokenizer::new(&DIALECT, sql)
        .tokenize_with_location()
        .map_err(|error| tokenizer_error(&error.message, sql, error.location))
}

/// Checks that the parser's stack suffices for these tokens.
fn check(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    // For each open parenthesis, the operators since its last comma.
    let mut chains = vec![0_usize];
    // The current run of NOTs and signs, each of which is a level.
    let mut prefixes = 0;
    for token in tokens {
        match &token.token {
            Token::Whitespace(_) => {}
            Token::Minus | Token::Plus | Token::Tilde => prefixes += 1,
            Token::Word(word) if word.keyword == Keyword::NOT => prefixes += 1,
            _ => prefixes = 0,
        }
        let last = chains.last_mut().expect("the outermost chain is never closed");
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => chains.push(0),
            Token::RParen | Token::RBracket | Token::RBrace => close(&mut chains),
            Token::Comma | Token::SemiColon => *last = 0,
            Token::Word(word) => match word.keyword {
                Keyword::CASE => chains.push(0),
                Keyword::END => close(&mut chains),
                Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
                | Keyword::IS
                | Keyword::LIKE
                | Keyword::IN
                | Keyword::BETWEEN
                | Keyword::COLLATE => *last += 1,
                _ => {}
            },
            Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Whitespace(_)
            | Token::Period
            | Token::Placeholder(_)
            | Token::EOF => {}
            _ => *last += 1,
        }
        let chain = chains.last().copied().unwrap_or(0);
        if chains.len() + prefixes > NESTING_MAX {
            let message = format!("the statement is nested more than {NESTING_MAX} levels deep");
            return Err(SqlError::new("54001", message).with_hint("write it with less nesting"));
        }
        if chain > CHAIN_MAX {
            let message = format!("an expression has more than {CHAIN_MAX} operators in a row");
            return Err(SqlError::new("54001", message)
                .with_hint("use IN with a list, or split the statement"));
        }
    }
    Ok(())
}

fn close(chains: &mut Vec<usize>) {
    if chains.len() > 1 {
        chains.pop();
    }
}

fn position(sql: &str, location: Location) -> Option<usize> {
    if location.line == 0 {
        return None;
    }
    let starts = line_starts(sql);
    Some(sql[..byte_of(sql, &starts, location)].chars().count() + 1)
}

fn tokenizer_error(message: &str, sql: &str, location: Location) -> SqlError {
    let message = format!("syntax error: {}", lower_first(message));
    SqlError::new("42601", message).with_position(position(sql, location))
}

fn syntax_error(error: &ParserError, sql: &str) -> SqlError {
    let text = match error {
        ParserError::RecursionLimitExceeded => {
            return SqlError::new("54001", "the statement is nested too deeply")
                .with_hint("write it with less nesting");
        }
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
    };
    let (message, place) = text.rsplit_once(" at Line: ").unwrap_or((text, ""));
    let location = place.split_once(", Column: ").and_then(|(line, column)| {
        Some(Location::new(line.trim().parse().ok()?, column.trim().parse().ok()?))
    });
    let error = SqlError::new("42601", format!("syntax error: {}", lower_first(message)));
    match location {
        Some(location) => error.with_position(position(sql, location)),
        None => error.with_position(Some(sql.chars().count() + 1)),
    }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_split_at_semicolons() {
        let script = "select 1; -- one; two\n select ';';\n\n;select $$a;b$$";
        let statements = split(script).unwrap();
        let texts: Vec<&str> = statements.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["select 1", "select ';'", "select $$a;b$$"]);
        assert_eq!(statements[1].0, script.find("select ';'").unwrap());
    }

    /// The error of parsing a text, on a stack of the parser's.
    fn error(sql: &str) -> Option<SqlError> {
        let parser = Parser::start(false).unwrap();
        let (sql, bytes) = (sql.to_owned(), sql.len());
        pollster::block_on(parser.run(bytes, move || parse(&sql).map(|_| ()))).err()
    }

    fn code(sql: &str) -> Option<&'static str> {
        error(sql).map(|error| error.code)
    }

    #[test]
    fn a_syntax_error_has_its_place() {
        let place = |sql| error(sql).map(|error| (error.code, error.position));
        assert_eq!(place("create\n tabel t"), Some(("42601", Some(9))));
        assert_eq!(place("selec 1"), Some(("42601", Some(1))));
        assert_eq!(code("select 1 select 2"), Some("42601"));
        assert_eq!(code("select 'x"), Some("42601"));
        assert_eq!(code("select 1"), None);
    }

    #[test]
    fn texts_that_would_overflow_the_stack_are_refused() {
        let nested = |levels| format!("select {}1{}", "(".repeat(levels), ")".repeat(levels));
        assert_eq!(code(&nested(200)), Some("54001"));
        assert_eq!(code(&nested(NESTING_MAX - 2)), None);
        assert_eq!(code(&format!("select 1{}", "+1".repeat(100_000))), Some("54001"));
        assert_eq!(code(&format!("select 1{}", "+1".repeat(CHAIN_MAX - 10))), None);
        assert_eq!(code(&format!("select {} true", "not ".repeat(3_000))), Some("54001"));
        assert_eq!(code(&format!("select {} 1", "- ".repeat(3_000))), Some("54001"));
        let long = format!("select '{}'", "x".repeat(STATEMENT_BYTES_MAX));
        assert_eq!(code(&long), Some("54001"));
    }

    #[test]
    fn empty_statements_are_known() {
        let is_empty = |sql| parse(sql).map(|parsed| parsed.is_none());
        assert_eq!(is_empty(" ; -- nothing\n"), Ok(true));
        assert_eq!(is_empty(""), Ok(true));
        assert_eq!(is_empty("select 1"), Ok(false));
    }

    #[test]
    fn short_texts_are_planned_on_the_sessions_own_thread() {
        let parser = Parser::start(false).unwrap();
        let thread = |bytes| {
            let name = || Ok(std::thread::current().name().map(str::to_owned));
            pollster::block_on(parser.run(bytes, name)).unwrap()
        };
        let own = std::thread::current().name().map(str::to_owned);
        for _ in 0..3 {
            assert_eq!(thread(SHORT_BYTES_MAX), own);
            assert_eq!(thread(SHORT_BYTES_MAX + 1).as_deref(), Some(THREAD));
        }
    }

    /// The longest chain of operators that a short text has, and the deepest nesting.
    #[test]
    fn the_stack_of_short_texts_suffices() {
        let chain = format!("select 1{}", "+1".repeat((SHORT_BYTES_MAX - 8) / 2));
        assert_eq!(chain.len(), SHORT_BYTES_MAX);
        assert_eq!(code(&chain), None);
        let nested = "(".repeat(NESTING_MAX - 2) + "1" + &")".repeat(NESTING_MAX - 2);
        assert_eq!(code(&format!("select {nested}, {nested}")), None);
    }

    #[test]
    fn a_panic_ends_the_statement_alone() {
        let parser = Parser::start(false).unwrap();
        for bytes in [1, SHORT_BYTES_MAX + 1] {
            for _ in 0..3 {
                let panicking = parser.run(bytes, || -> Result<(), _> { panic!("in a job") });
                assert_eq!(pollster::block_on(panicking).unwrap_err().code, "XX000");
            }
            assert_eq!(pollster::block_on(parser.run(bytes, || Ok(8))), Ok(8));
        }
    }

    #[test]
    fn a_text_of_very_many_statements_is_split_in_one_pass() {
        // If each word cost a pass over its line, this would take hours.
        let text = "é;".repeat(1_300_000);
        let statements = split(&text).unwrap();
        assert_eq!(statements.len(), 1_300_000);
        assert_eq!(statements[1_000_000], (2_000_000, "é".to_owned()));
        assert_eq!(split(&" ".repeat(SCRIPT_BYTES_MAX + 1)).unwrap_err().code, "54001");
        let lines = split(" a\n ;\n\n  'é\n;' b ; c").unwrap();
        assert_eq!(lines, [(1, "a".to_owned()), (9, "'é\n;' b".to_owned()), (19, "c".to_owned())]);
    }
}
