//! LIKE and regular expressions: compiled on other threads, matched in steps.
//!
//! Compilation recurses over the user's pattern, and may take long. So a thread of its own ([`Aside`]) compiles the pattern,
//! with bounds on the text and the automaton. A lazy automaton matches byte by byte, and builds each state when it first
//! reaches that state. A match of any length therefore yields the thread at intervals, and can be cancelled. Its time is
//! linear in the text.
//!
//! *Source*: `regex_automata::hybrid`.
//!
//! *Not here*: caches of compiled patterns. A constant pattern keeps its own ([`Kept`]), the statement keeps others.
//!
//! [`Aside`]: crate::aside::Aside

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::meta::{self, Regex};
use regex_automata::nfa::thompson::{Config as NfaConfig, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Input, hybrid};

use crate::error::{Failure, SqlError};

/// Bytes of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Bytes of a regular expression's text; each byte may denote a class of all letters.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Nesting of groups and classes.
const NESTING_MAX: u32 = 250;
/// Bytes of states in one cache.
const CACHE_BYTES_MAX: usize = 1 << 20;
/// Idle caches.
const CACHES_MAX: usize = 8;
/// Bytes of automaton between two checks: well below a millisecond, even if every step builds a new state.
const BYTES_BETWEEN_CHECKS: usize = 4 << 20;
/// Bytes of automaton times bytes of text, for a search on another thread that cannot be interrupted: some seconds.
const SEARCH_MAX: usize = 1 << 36;

/// The syntax of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Syntax {
    /// `%` and `_`, with an escape character if there is one.
    Like(Option<char>),
    /// A regular expression.
    Regular,
}

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Compiled {
    automaton: DFA,
    caches: Mutex<Vec<Cache>>,
    /// Bytes of text between two checks.
    step_bytes: usize,
    /// The pattern's text, for texts that the automaton gives up on.
    expression: String,
    ignore_case: bool,
}

/// The compiled form of a constant pattern, once it exists. Two of them are always equal, because equality is the pattern's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept(pub(crate) Arc<OnceLock<Arc<Compiled>>>);

impl PartialEq for Kept {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Compiled {
    /// Whether a text matches; `check` is called at intervals. None if only [`Self::search`] can tell: `\b` in a text with
    /// letters outside of ASCII.
    ///
    /// # Errors
    /// Those of `check`.
    pub(crate) fn matches(
        &self,
        text: &str,
        mut check: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Option<bool>, Failure> {
        let kept = self.caches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut cache = kept.unwrap_or_else(|| self.automaton.create_cache());
        let matched = self.steps(text, &mut cache, &mut check);
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        if caches.len() < CACHES_MAX {
            caches.push(cache);
        }
        matched
    }

    fn steps(
        &self,
        text: &str,
        cache: &mut Cache,
        check: &mut impl FnMut() -> Result<(), Failure>,
    ) -> Result<Option<bool>, Failure> {
        let Ok(mut state) = self.automaton.start_state_forward(cache, &Input::new(text)) else {
            return Ok(None);
        };
        for (number, bytes) in text.as_bytes().chunks(self.step_bytes).enumerate() {
            if number > 0 {
                check()?;
            }
            for byte in bytes {
                let Ok(next) = self.automaton.next_state(cache, state, *byte) else {
                    return Ok(None);
                };
                state = next;
                if state.is_tagged() {
                    if state.is_match() {
                        return Ok(Some(true));
                    }
                    if state.is_dead() {
                        return Ok(Some(false));
                    }
                    if state.is_quit() {
                        return Ok(None);
                    }
                }
            }
        }
        let end = self.automaton.next_eoi_state(cache, state);
        Ok(end.ok().map(|state| state.is_match()))
    }

    /// Whether a text matches, without interruption: for threads beside the workers.
    ///
    /// # Errors
    /// SQLSTATE 54000 if the search would take too long.
    pub(crate) fn search(&self, text: &str) -> Result<bool, SqlError> {
        let searcher = searcher(&self.expression, self.ignore_case)?;
        check_search(&searcher, text)?;
        Ok(searcher.is_match(text))
    }
}

/// Compiles a pattern, on a thread of [`crate::aside`]; a short one of LIKE also on a worker's.
///
/// # Errors
/// SQLSTATE 22025 for a LIKE pattern that ends in its escape character, 2201B for a regular expression that is malformed or
/// too large.
pub(crate) fn compile(
    pattern: &str,
    syntax: Syntax,
    ignore_case: bool,
) -> Result<Compiled, SqlError> {
    let expression = match syntax {
        Syntax::Like(escape) => like_expression(pattern, escape)?,
        Syntax::Regular => {
            check_text(pattern)?;
            pattern.to_owned()
        }
    };
    let automaton = DFA::builder()
        .syntax(syntax_of(ignore_case))
        .thompson(
            NfaConfig::new()
                .nfa_size_limit(Some(PATTERN_BYTES_MAX))
                .which_captures(WhichCaptures::None),
        )
        .configure(
            Config::new()
                .unicode_word_boundary(true)
                .cache_capacity(CACHE_BYTES_MAX)
                .skip_cache_capacity_check(true),
        )
        .build(&expression)
        .map_err(|error: hybrid::BuildError| malformed(&error))?;
    let step_bytes = BYTES_BETWEEN_CHECKS / automaton.get_nfa().memory_usage().max(1);
    Ok(Compiled {
        automaton,
        caches: Mutex::default(),
        step_bytes: step_bytes.max(1),
        expression,
        ignore_case,
    })
}

fn syntax_of(ignore_case: bool) -> syntax::Config {
    syntax::Config::new()
        .case_insensitive(ignore_case)
        .dot_matches_new_line(true)
        .nest_limit(NESTING_MAX)
}

fn check_text(pattern: &str) -> Result<(), SqlError> {
    if pattern.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    let (bytes, max) = (pattern.len(), TEXT_BYTES_MAX);
    let message = format!("a regular expression of {bytes} bytes is too long; the limit is {max}");
    Err(SqlError::new("2201B", message))
}

/// A searcher for the places where a regular expression matches.
fn searcher(expression: &str, ignore_case: bool) -> Result<Regex, SqlError> {
    Regex::builder()
        .syntax(syntax_of(ignore_case))
        .configure(meta::Config::new().nfa_size_limit(Some(PATTERN_BYTES_MAX)))
        .build(expression)
        .map_err(|error| malformed(&error))
}

fn check_search(searcher: &Regex, text: &str) -> Result<(), SqlError> {
    if searcher.memory_usage().saturating_mul(text.len()) <= SEARCH_MAX {
        return Ok(());
    }
    let message = format!("a text of {} bytes is too long for this pattern", text.len());
    Err(SqlError::new("54000", message).with_hint("use a simpler pattern, or shorter texts"))
}

/// The message is in the deepest cause, on its last line; the lines before show the place.
fn malformed(error: &(dyn std::error::Error + 'static)) -> SqlError {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    let line = text.lines().last().unwrap_or_default().trim();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    SqlError::new("2201B", format!("invalid regular expression: {line}"))
}

/// `regexp_replace`: replaces the first match, or all matches with the flag `g`; `check` gets the length of the result. This
/// runs on a thread of [`crate::aside`], whose flag ends it early.
///
/// # Errors
/// As [`compile`], those of `check`, and SQLSTATE 54000 for a search that would take too long.
pub(crate) fn replace(
    [text, pattern, replacement, flags]: [&str; 4],
    check: impl Fn(usize) -> Result<(), SqlError>,
    abandoned: &AtomicBool,
) -> Result<String, SqlError> {
    check_text(pattern)?;
    let searcher = searcher(pattern, flags.contains('i'))?;
    check_search(&searcher, text)?;
    let parts = replacement_parts(replacement);
    let count = if flags.contains('g') { usize::MAX } else { 1 };
    let (mut result, mut end) = (String::new(), 0);
    for found in searcher.captures_iter(text).take(count) {
        // Relaxed: the flag carries nothing but itself.
        if abandoned.load(Ordering::Relaxed) {
            return Err(SqlError::new("57014", "canceling statement due to user request"));
        }
        let Some(whole) = found.get_match() else { continue };
        result.push_str(&text[end..whole.start()]);
        for part in &parts {
            let part = match part {
                Replacement::Text(text) => text.as_str(),
                Replacement::Group(group) => found.get_group(*group).map_or("", |at| &text[at]),
            };
            check(result.len().saturating_add(part.len()))?;
            result.push_str(part);
        }
        end = whole.end();
    }
    check(result.len() + text.len() - end)?;
    result.push_str(&text[end..]);
    Ok(result)
}

/// A part of a replacement text.
enum Replacement {
    Text(String),
    /// The match of a group; 0 is the whole match.
    Group(usize),
}

fn replacement_parts(replacement: &str) -> Vec<Replacement> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut characters = replacement.chars();
    while let Some(character) = characters.next() {
        let group = match (character, characters.clone().next()) {
            ('\\', Some('&')) => Some(0),
            ('\\', Some(digit)) => digit.to_digit(10),
            _ => None,
        };
        match (group, character) {
            (Some(group), _) => {
                characters.next();
                parts.push(Replacement::Text(std::mem::take(&mut literal)));
                parts.push(Replacement::Group(group as usize));
            }
            (None, '\\') => literal.push(characters.next().unwrap_or('\\')),
            (None, other) => literal.push(other),
        }
    }
    parts.push(Replacement::Text(literal));
    parts
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

    fn compiled(pattern: &str, syntax: Syntax) -> Compiled {
        compile(pattern, syntax, false).unwrap()
    }

    fn like(text: &str, pattern: &str) -> bool {
        let compiled = compiled(pattern, Syntax::Like(Some('\\')));
        compiled.matches(text, || Ok(())).unwrap().expect("LIKE has no words")
    }

    #[test]
    fn like_matches_whole_texts() {
        assert!(like("abc", "a%") && like("abc", "_b_") && like("", "%") && like("a\nb", "a%b"));
        assert!(!like("abc", "a") && !like("abc", "b%"));
        assert!(like("50%", "50\\%") && !like("505", "50\\%") && like("a.c", "a.c"));
        assert!(!like("abc", "a.c") && like("naïve", "na_ve"));
    }

    #[test]
    fn a_pattern_that_ends_in_its_escape_is_an_error() {
        assert_eq!(compile("a\\", Syntax::Like(Some('\\')), false).unwrap_err().code, "22025");
        assert_eq!(compile("(", Syntax::Regular, false).unwrap_err().code, "2201B");
    }

    #[test]
    fn a_long_match_can_be_interrupted_anywhere() {
        let compiled = compiled("(x+x+)+y[ab]{500}", Syntax::Regular);
        let text = "x".repeat(1 << 20);
        assert_eq!(compiled.matches(&text, || Ok(())).unwrap(), Some(false));
        let mut checks = 0;
        let check = || {
            checks += 1;
            if checks == 3 { Err(SqlError::new("57014", "enough").into()) } else { Ok(()) }
        };
        assert!(compiled.matches(&text, check).is_err());
    }

    #[test]
    fn words_of_other_letters_are_searched_for() {
        let compiled = compiled(r"\bnaïve\b", Syntax::Regular);
        assert_eq!(compiled.matches("naïve", || Ok(())).unwrap(), None);
        assert!(compiled.search("a naïve one").unwrap() && !compiled.search("naïves").unwrap());
        let ascii = self::compiled(r"\bword\b", Syntax::Regular);
        assert_eq!(ascii.matches("a word.", || Ok(())).unwrap(), Some(true));
    }

    #[test]
    fn too_large_patterns_are_refused() {
        for pattern in ["((a{1000}){1000}){1000}".to_owned(), "a".repeat(TEXT_BYTES_MAX + 1)] {
            assert_eq!(compile(&pattern, Syntax::Regular, false).unwrap_err().code, "2201B");
        }
        let text = "a".repeat(64 << 20);
        let pattern = r"\w{20}";
        let error = replace([&text, pattern, "", "g"], |_| Ok(()), &AtomicBool::new(false));
        assert_eq!(error.unwrap_err().code, "54000");
    }

    #[test]
    fn replacements_are_bounded_and_end_early() {
        let flag = AtomicBool::new(false);
        let check = |bytes| match bytes {
            0..=50_000 => Ok(()),
            _ => Err(SqlError::new("53200", "too much")),
        };
        let replaced = |flags| replace(["aXbX", "(X)", "<\\1>$", flags], check, &flag);
        assert_eq!(replaced("").unwrap(), "a<X>$bX");
        assert_eq!(replaced("g").unwrap(), "a<X>$b<X>$");
        let text = "x".repeat(10_000);
        let error = replace([&text, "x", "1234567890", "g"], check, &flag).unwrap_err();
        assert_eq!(error.code, "53200");
        flag.store(true, Ordering::Relaxed);
        assert_eq!(replace([&text, "x", "y", "g"], check, &flag).unwrap_err().code, "57014");
    }
}
