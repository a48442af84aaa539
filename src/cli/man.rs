//! `ordgate man`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::roff::{Roff, bold, roman};
use ordgate::{build, config};

use super::print;

/// Writes the pages of the command and its subcommands, and that of proxy.toml.
pub(super) fn write(command: Command, directory: &Path) -> Result<ExitCode> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let failed = || format!("cannot write to {}", directory.display());
    clap_mangen::generate_to(command.disable_help_subcommand(true), directory)
        .with_context(failed)?;
    fs::write(directory.join("proxy.toml.5"), configuration()).with_context(failed)?;
    print(&format!("the man pages are in {}\n", directory.display()))
}

/// The page of the configuration file: docs/configuration.md with the markup of man pages.
fn configuration() -> String {
    let source = format!("ordgate {}", build::VERSION);
    let mut page = Roff::new();
    page.control("TH", ["proxy.toml", "5", build::DATE, &source, "ordgate"]);
    page.control("SH", ["NAME"]);
    page.text([roman("proxy.toml - the configuration of ordgate")]);
    page.control("SH", ["DESCRIPTION"]);
    for line in config::page().lines().skip(1) {
        let line = line.replace(['`', '\\'], "").replace("&lt;", "<");
        // What a value may be is in italics.
        let line = line
            .strip_prefix('_')
            .map_or_else(|| line.clone(), |rest| rest.replacen("._", ".", 1));
        match line.split_once(' ') {
            Some(("##", table)) => page.control("SH", [table]),
            Some(("###", key)) => page.control("TP", []).text([bold(key)]),
            _ if line.is_empty() => page.control("IP", []),
            _ => page.text([roman(line)]),
        };
    }
    page.render()
}
