//! `ordgate token`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use ordgate::client_tokens::file::{TokenName, line, new_token};

use super::print;

/// Prints a new token, and the line for the token file.
pub(super) fn new(name: &TokenName) -> Result<ExitCode> {
    let token = new_token().context("the system has no randomness")?;
    print(&format!("{token}\n{}\n", line(name, &token)))
}

/// Reads a name of the command line.
pub(super) fn name(text: &str) -> Result<TokenName, &'static str> {
    TokenName::try_from(text.to_owned())
}
