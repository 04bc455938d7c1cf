//! PostgreSQL's dialect where the parser differs: operators before a sign, string constants side by side, truth values of
//! COPY options, VACUUM, ANALYZE.
//!
//! *Source*: PostgreSQL 15, sections 4.1.2.1 and 4.1.3, reference pages COPY, VACUUM and ANALYZE.
//!
//! *Not here*: syntax that the parser reads as PostgreSQL does.

use sqlparser::ast::ObjectName;
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser as SqlParser, ParserError};
use sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer, Whitespace, Word};

/// VACUUM or ANALYZE. Both have nothing to do: deleted rows leave no versions behind, and plans use no statistics.
/// statistics.
#[derive(Debug)]
pub(crate) struct Maintenance {
    /// The command tag.
    pub(crate) tag: &'static str,
    /// The tables that the statement names.
    pub(crate) tables: Vec<ObjectName>,
}

/// Separates operators from the signs that follow them: `2>-1` has two operators. An operator of several characters ends in a
/// sign only if it contains a character that no standard operator has.
pub(super) fn part_signs(tokens: &mut Vec<TokenWithSpan>) {
    let is_joined = |token: &TokenWithSpan| matches!(&token.token, Token::CustomBinaryOperator(_));
    if !tokens.iter().any(is_joined) {
        return;
    }
    let mut parted = Vec::with_capacity(tokens.len() + 2);
    for token in tokens.drain(..) {
        match operator_and_signs(&token.token) {
            Some((operator, signs)) => {
                let (start, end) = (token.span.start, token.span.end);
                let middle = Location::new(start.line, start.column + operator.len() as u64);
                let inner = Tokenizer::new(&PostgreSqlDialect {}, operator).tokenize();
                let operator = match inner.as_deref() {
                    Ok([one]) => one.clone(),
                    _ => Token::CustomBinaryOperator(operator.to_owned()),
                };
                parted.push(TokenWithSpan::new(operator, Span::new(start, middle)));
                for sign in signs.chars() {
                    let sign = if sign == '-' { Token::Minus } else { Token::Plus };
                    parted.push(TokenWithSpan::new(sign, Span::new(middle, end)));
                }
            }
            None => parted.push(token),
        }
    }
    *tokens = parted;
}

fn operator_and_signs(token: &Token) -> Option<(&str, &str)> {
    let Token::CustomBinaryOperator(joined) = token else { return None };
    if joined.contains(['~', '!', '@', '#', '%', '^', '&', '|', '`', '?']) {
        return None;
    }
    let operator = joined.trim_end_matches(['+', '-']);
    // If all characters are signs, the first one is the operator.
    Some(joined.split_at(operator.len().max(1)))
}

/// Joins string constants that a line break separates; on one line, a second one is an error.
///
/// # Errors
/// The place and text of a string constant that follows another one on its line.
pub(super) fn join_strings(tokens: &mut Vec<TokenWithSpan>) -> Result<(), (Location, String)> {
    let mut joined: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // The last string constant, and whether a line break has followed.
    let mut before: Option<(usize, bool)> = None;
    for token in tokens.drain(..) {
        match (&token.token, before) {
            (Token::Whitespace(Whitespace::Newline), Some((at, _))) => before = Some((at, true)),
            (Token::Whitespace(Whitespace::SingleLineComment { comment, .. }), Some((at, _)))
                if comment.ends_with('\n') =>
            {
                before = Some((at, true));
            }
            (Token::Whitespace(_), _) => {}
            (Token::SingleQuotedString(more), Some((at, true))) => {
                match &mut joined[at].token {
                    Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => {
                        text.push_str(more);
                    }
                    _ => {}
                }
                continue;
            }
            (Token::SingleQuotedString(more), Some((_, false))) => {
                return Err((token.span.start, format!("'{more}'")));
            }
            (Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_), _) => {
                before = Some((joined.len(), false));
            }
            _ => before = None,
        }
        joined.push(token);
    }
    *tokens = joined;
    Ok(())
}

/// Replaces ON, OFF, 1 and 0 after HEADER and FREEZE of a COPY by TRUE and FALSE, which the parser reads.
pub(super) fn spell_out_truth(tokens: &mut [TokenWithSpan]) {
    let mut words = tokens.iter_mut().map(|token| &mut token.token).filter(|token| {
        // Blanks between the words of an option do not matter.
        !matches!(token, Token::Whitespace(_))
    });
    if words.next().is_none_or(|first| keyword(first) != Keyword::COPY) {
        return;
    }
    // The options follow FROM or TO outside the parentheses of a query.
    let (mut depth, mut in_options, mut takes_truth) = (0_usize, false, false);
    for token in words {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        let keyword = keyword(token);
        in_options |= depth == 0 && matches!(keyword, Keyword::FROM | Keyword::TO);
        if std::mem::replace(&mut takes_truth, false) {
            let truth = match token {
                Token::Word(word) if word.value.eq_ignore_ascii_case("on") => Keyword::TRUE,
                Token::Word(word) if word.value.eq_ignore_ascii_case("off") => Keyword::FALSE,
                Token::Number(digits, _) if digits == "1" => Keyword::TRUE,
                Token::Number(digits, _) if digits == "0" => Keyword::FALSE,
                _ => continue,
            };
            let value = if truth == Keyword::TRUE { "TRUE" } else { "FALSE" };
            let value = value.to_owned();
            *token = Token::Word(Word { value, quote_style: None, keyword: truth });
        } else {
            takes_truth =
                in_options && depth > 0 && matches!(keyword, Keyword::HEADER | Keyword::FREEZE);
        }
    }
}

fn keyword(token: &Token) -> Keyword {
    match token {
        Token::Word(word) => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// VACUUM or ANALYZE, if the statement is either.
pub(super) fn maintenance(parser: &mut SqlParser<'_>) -> Result<Option<Maintenance>, ParserError> {
    let tag = match parser.parse_one_of_keywords(&[Keyword::VACUUM, Keyword::ANALYZE]) {
        Some(Keyword::VACUUM) => "VACUUM",
        Some(_) => "ANALYZE",
        None => return Ok(None),
    };
    if parser.peek_token().token == Token::LParen {
        skip_parentheses(parser)?;
    } else {
        let options = [Keyword::FULL, Keyword::FREEZE, Keyword::VERBOSE, Keyword::ANALYZE];
        while parser.parse_one_of_keywords(&options).is_some() {}
    }
    let mut tables = Vec::new();
    if !matches!(parser.peek_token().token, Token::SemiColon | Token::EOF) {
        loop {
            tables.push(parser.parse_object_name(false)?);
            if parser.peek_token().token == Token::LParen {
                skip_parentheses(parser)?;
            }
            if !parser.consume_token(&Token::Comma) {
                break;
            }
        }
    }
    Ok(Some(Maintenance { tag, tables }))
}

/// Skips options, or columns, which make no difference.
fn skip_parentheses(parser: &mut SqlParser<'_>) -> Result<(), ParserError> {
    parser.expect_token(&Token::LParen)?;
    let mut depth = 1;
    while depth > 0 {
        let next = parser.next_token();
        match next.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            Token::EOF => return parser.expected(")", next),
            _ => {}
        }
    }
    Ok(())
}
