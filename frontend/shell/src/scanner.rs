//! Splits lines of text into statements.
//!
//! A statement ends at a semicolon outside of quotes, dollar quotes and comments.
//!
//! *Source*: PostgreSQL 15, section 4.1 (lexical structure).
//!
//! *Invariants*: each byte is scanned once, however many lines a statement has.

use super::command;

/// Text that waits to be run: statements, of which the last may be unfinished.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    text: String,
    /// The text up to here was scanned.
    seen: usize,
    state: State,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Plain,
    /// `'...'`
    Text,
    /// `E'...'`, in which a backslash escapes.
    EscapedText,
    /// `"..."`
    Name,
    /// `$tag$...$tag$`, with the whole closing tag.
    Dollar(String),
    /// `-- ...`
    LineComment,
    /// `/* ... */`, which nests.
    BlockComment(usize),
}

impl Scanner {
    /// Adds a line, without its newline.
    pub(super) fn push_line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Whether only blanks and comments wait.
    pub(super) fn is_blank(&self) -> bool {
        self.state == State::Plain && self.text.trim().is_empty()
    }

    /// Whether the next typed line is a command.
    pub(super) fn is_command(&self, line: &str) -> bool {
        self.state == State::Plain && command::is_typed(line, !self.is_blank())
    }

    /// The expected end: of a statement (`-`), or of a quote or comment in it.
    pub(super) fn awaited(&self) -> char {
        match self.state {
            State::Plain | State::LineComment => '-',
            State::Text | State::EscapedText => '\'',
            State::Name => '"',
            State::Dollar(_) => '$',
            State::BlockComment(_) => '*',
        }
    }

    /// Takes the next whole statement, without its semicolon.
    pub(super) fn take_statement(&mut self) -> Option<String> {
        loop {
            let end = self.find_end()?;
            let rest = self.text.split_off(end + 1);
            let mut statement = std::mem::replace(&mut self.text, rest);
            self.seen = 0;
            statement.truncate(end);
            if !is_only_comments(&statement) {
                return Some(statement.trim().to_owned());
            }
        }
    }

    /// Takes the rest, though it is unfinished.
    pub(super) fn take_rest(&mut self) -> Option<String> {
        let rest = std::mem::take(self).text;
        (!is_only_comments(&rest)).then(|| rest.trim().to_owned())
    }

    /// The place of the first semicolon that ends a statement.
    fn find_end(&mut self) -> Option<usize> {
        while self.seen < self.text.len() {
            let (step, ended) = self.step();
            if ended {
                return Some(self.seen);
            }
            self.seen += step;
        }
        None
    }

    /// The number of bytes that belong together at the current place, and whether they end a statement.
    fn step(&mut self) -> (usize, bool) {
        let rest = &self.text.as_bytes()[self.seen..];
        let two = |pair: &[u8; 2]| rest.starts_with(pair);
        match &mut self.state {
            State::Plain => return self.step_plain(),
            State::Text if two(b"''") => return (2, false),
            State::Text if rest[0] == b'\'' => self.state = State::Plain,
            State::EscapedText if rest[0] == b'\\' || two(b"''") => {
                return (rest.len().min(2), false);
            }
            State::EscapedText if rest[0] == b'\'' => self.state = State::Plain,
            State::Name if rest[0] == b'"' => self.state = State::Plain,
            State::Dollar(tag) if rest.starts_with(tag.as_bytes()) => {
                let length = tag.len();
                self.state = State::Plain;
                return (length, false);
            }
            State::LineComment if rest[0] == b'\n' => self.state = State::Plain,
            State::BlockComment(depth) if two(b"/*") => {
                *depth += 1;
                return (2, false);
            }
            State::BlockComment(depth) if two(b"*/") => {
                *depth -= 1;
                if *depth == 0 {
                    self.state = State::Plain;
                }
                return (2, false);
            }
            _ => {}
        }
        (1, false)
    }

    fn step_plain(&mut self) -> (usize, bool) {
        let bytes = self.text.as_bytes();
        let rest = &bytes[self.seen..];
        let before = self.seen.checked_sub(1).map(|at| bytes[at]);
        match rest[0] {
            b';' => return (1, true),
            b'\'' => {
                let escaped = matches!(before, Some(b'e' | b'E'))
                    && !self.seen.checked_sub(2).is_some_and(|at| is_word(bytes[at]));
                self.state = if escaped { State::EscapedText } else { State::Text };
            }
            b'"' => self.state = State::Name,
            b'-' if rest.starts_with(b"--") => self.state = State::LineComment,
            b'/' if rest.starts_with(b"/*") => {
                self.state = State::BlockComment(1);
                return (2, false);
            }
            b'$' if !before.is_some_and(is_word) => {
                if let Some(tag) = dollar_tag(&self.text[self.seen..]) {
                    let length = tag.len();
                    self.state = State::Dollar(tag.to_owned());
                    return (length, false);
                }
            }
            _ => {}
        }
        (1, false)
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// `$$` or `$tag$` at the beginning of a text.
fn dollar_tag(text: &str) -> Option<&str> {
    let end = 1 + text[1..].find('$')?;
    let tag = &text[1..end];
    let is_tag = !tag.starts_with(|c: char| c.is_ascii_digit())
        && tag.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_tag.then(|| &text[..=end])
}

/// Whether the text contains no statement.
fn is_only_comments(text: &str) -> bool {
    let mut scanner = Scanner { text: text.to_owned(), ..Scanner::default() };
    while scanner.seen < scanner.text.len() {
        let plain = scanner.state == State::Plain;
        let (step, _) = scanner.step();
        let still_plain = plain && scanner.state == State::Plain;
        let opens_comment = matches!(scanner.state, State::LineComment | State::BlockComment(_));
        let blank = scanner.text.as_bytes()[scanner.seen].is_ascii_whitespace();
        if plain && !opens_comment && !(still_plain && blank) {
            return false;
        }
        scanner.seen += step;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> (Vec<String>, Option<String>) {
        let mut scanner = Scanner::default();
        let mut statements = Vec::new();
        for line in text.lines() {
            scanner.push_line(line);
            statements.extend(std::iter::from_fn(|| scanner.take_statement()));
        }
        (statements, scanner.take_rest())
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        for statement in [
            "SELECT ';'",
            "SELECT 'it''s;'",
            "SELECT E'\\';'",
            "SELECT \"a;b\"",
            "SELECT $$;$$",
            "SELECT $a$ ; $$ ; $a$",
            "SELECT 1 -- ;\n + 2",
            "SELECT /* ; /* ; */ ; */ 1",
            "SELECT $1",
            "SELECT date'2024-01-01', E'a;'",
            "SELECT 'ü;', \"ß\"",
        ] {
            let expected = (vec![statement.to_owned()], None);
            assert_eq!(split(&format!("{statement};")), expected);
            let expected = vec![statement.to_owned(), "SELECT 2".to_owned()];
            assert_eq!(split(&format!("{statement} ; SELECT 2;\n")).0, expected);
        }
    }

    #[test]
    fn unfinished_statements_wait() {
        assert_eq!(split("SELECT 'a;\nb"), (vec![], Some("SELECT 'a;\nb".to_owned())));
        assert_eq!(split("-- only\n;;/* x */;"), (vec![], None));
        assert_eq!(split("SELECT $a$;"), (vec![], Some("SELECT $a$;".to_owned())));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "[;'\"$a/*\\-\\\\ \nEé]{0,40}") {
            split(&text);
        }
    }
}
