//! `ordgate token`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use ordgate::client_tokens::{file, token};
use ordgate::secrets::Secret;

use super::print;

/// Prints a new token, and the line for the token file.
pub(super) fn new(name: &str) -> Result<ExitCode> {
    let new = token::generate().context("the system has no randomness")?;
    let mut text = Secret::new(String::with_capacity(256));
    for part in [&**new.text, "\n", name, " ", &*new.digest, "\n"] {
        text.push_str(part);
    }
    print(&text)
}

/// Reads a name of the command line.
pub(super) fn name(text: &str) -> Result<String, String> {
    match file::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("allowed is {}", file::NAMES)),
    }
}
