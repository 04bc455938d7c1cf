//! LIKE and regular expressions, both through `regex`, whose time is linear in the text.

use regex::{Regex, RegexBuilder};

use crate::error::SqlError;

/// Bytes that a compiled pattern may take.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// How a pattern is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// `%` and `_`, with an escape character if there is one.
    Like(Option<char>),
    /// A regular expression.
    Regular,
}

/// A pattern that is ready to match.
#[derive(Clone, Debug)]
pub(crate) struct Compiled(Regex);

impl PartialEq for Compiled {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Compiled {
    /// Whether a text matches.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// The expression behind it.
    pub(crate) fn regex(&self) -> &Regex {
        &self.0
    }
}

/// Makes a pattern ready.
///
/// # Errors
/// SQLSTATE 22025 for a LIKE pattern that ends in its escape character, 2201B for a malformed regular
/// expression.
pub(crate) fn compile(
    pattern: &str,
    syntax: Syntax,
    ignore_case: bool,
) -> Result<Compiled, SqlError> {
    let expression = match syntax {
        Syntax::Like(escape) => like_expression(pattern, escape)?,
        Syntax::Regular => pattern.to_owned(),
    };
    RegexBuilder::new(&expression)
        .case_insensitive(ignore_case)
        .dot_matches_new_line(true)
        .size_limit(PATTERN_BYTES_MAX)
        .build()
        .map(Compiled)
        .map_err(|error| {
            SqlError::new("2201B", format!("invalid regular expression: {}", last_line(&error)))
        })
}

fn last_line(error: &regex::Error) -> String {
    error.to_string().lines().last().unwrap_or_default().trim().to_owned()
}

fn like_expression(pattern: &str, escape: Option<char>) -> Result<String, SqlError> {
    let mut expression = String::from("^");
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        let literal = if Some(character) == escape {
            characters.next().ok_or_else(|| {
                SqlError::new("22025", "LIKE pattern must not end with escape character")
            })?
        } else if character == '%' {
            expression.push_str(".*");
            continue;
        } else if character == '_' {
            expression.push('.');
            continue;
        } else {
            character
        };
        expression.push_str(&regex::escape(literal.encode_utf8(&mut [0; 4])));
    }
    expression.push('$');
    Ok(expression)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(text: &str, pattern: &str) -> bool {
        compile(pattern, Syntax::Like(Some('\\')), false).unwrap().matches(text)
    }

    #[test]
    fn like_matches_whole_texts() {
        assert!(like("abc", "a%") && like("abc", "_b_") && like("", "%") && like("a\nb", "a%b"));
        assert!(!like("abc", "a") && !like("abc", "b%"));
        assert!(like("50%", "50\\%") && !like("505", "50\\%") && like("a.c", "a.c"));
        assert!(!like("abc", "a.c"));
    }

    #[test]
    fn a_pattern_that_ends_in_its_escape_is_an_error() {
        assert_eq!(compile("a\\", Syntax::Like(Some('\\')), false).unwrap_err().code, "22025");
        assert_eq!(compile("(", Syntax::Regular, false).unwrap_err().code, "2201B");
    }
}
