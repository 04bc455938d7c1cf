//! `gannet user`: adds users to the file of `gannet serve --users`.
//!
//! Exit codes: 0 the user was written, 2 an error.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use gannet_server::UsersError;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The user's name; an entry with that name is replaced.
    name: String,
    /// The users file, created if it does not exist.
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
}

/// Why the user was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("cannot read the password: {0}")]
    Password(std::io::Error),
    #[error("the two passwords differ; try again")]
    PasswordsDiffer,
    #[error(transparent)]
    Users(#[from] UsersError),
}

/// Asks for the password; without a terminal, reads a line of standard input.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let password = if std::io::stdin().is_terminal() {
        let prompt = |text| rpassword::prompt_password(text).map_err(CommandError::Password);
        let password = prompt(format!("Password for {}: ", arguments.name))?;
        if prompt("Again: ".to_owned())? != password {
            return Err(CommandError::PasswordsDiffer);
        }
        password
    } else {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(CommandError::Password)?;
        line.trim_end_matches(['\n', '\r']).to_owned()
    };
    Ok(gannet_server::add_user(&arguments.users, &arguments.name, &password)?)
}
