//! Commands of the program around the shell, such as those of a demonstration that has processes.
//!
//! *Invariants*: the shell knows of such a command its name, a line of help, and what it replies.
//!
//! *Not here*: the shell's own commands (`command`).

use super::outcome::Failure;
use super::{Shell, command, warn};

/// Runs a command, given what follows its name.
pub type RunCommand = Box<dyn FnMut(&str) -> Result<String, String>>;

/// A command of the program around the shell.
pub struct ShellCommand {
    /// The name, which begins with a dot and is none of the shell's own.
    pub name: &'static str,
    /// How to use it: the name and what follows, at most 22 characters.
    pub usage: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// Does it, given what follows the name: the text that tells what was done, or why not and what to do.
    pub run: RunCommand,
}

impl Shell {
    /// Runs a command of the program around the shell, if the line is one.
    pub(super) fn run_added(&mut self, line: &str) -> Option<Result<(), Failure>> {
        let (name, arguments) = command::split(line);
        let added = self.added.iter_mut().find(|added| added.name == name)?;
        Some(match (added.run)(arguments) {
            Ok(text) => {
                warn(&text);
                Ok(())
            }
            Err(message) => Err(Failure::new(message)),
        })
    }

    /// The text of `.help`; the commands of the program come first.
    pub(super) fn help(&self) -> String {
        let line = |added: &ShellCommand| format!("{:<22} {}\n", added.usage, added.help);
        self.added.iter().map(line).chain([command::HELP.to_owned()]).collect()
    }
}
