//! What PostgreSQL lets one write and the parser does not read: truth values of COPY options, VACUUM, ANALYZE.
//!
//! *Source*: PostgreSQL 15, reference pages COPY, VACUUM and ANALYZE.
//! *Not here*: everything that the parser reads by itself.

use sqlparser::ast::ObjectName;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser as SqlParser, ParserError};
use sqlparser::tokenizer::{Token, TokenWithSpan, Word};

/// VACUUM or ANALYZE. There is nothing to do for them: deleted rows leave no versions behind, and plans use no
/// statistics.
#[derive(Debug)]
pub(crate) struct Maintenance {
    /// What clients are told.
    pub(crate) tag: &'static str,
    /// The tables that it names.
    pub(crate) tables: Vec<ObjectName>,
}

/// Writes ON, OFF, 1 and 0 after HEADER and FREEZE of a COPY as TRUE and FALSE, which the parser reads.
pub(super) fn spell_out_truth(tokens: &mut [TokenWithSpan]) {
    let mut words = tokens.iter_mut().map(|token| &mut token.token).filter(|token| {
        // What is between the words of an option does not matter.
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

/// VACUUM or ANALYZE, if the statement is one of them.
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

/// Options, or columns, which make no difference.
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
