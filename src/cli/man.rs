//! `ordgate man`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use ordgate::config::{self, KeyReference};

use super::variables::{VARIABLES, Variable};
use super::{build, print};

const MANUAL: &str = "ordgate";

/// Writes the page of the command and those of its subcommands, and that of proxy.toml.
pub(super) fn write(mut command: Command, directory: &Path) -> Result<ExitCode> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = vec![("proxy.toml.5".to_owned(), configuration())];
    add_pages(&mut pages, &command, true)?;
    pages.sort();
    let mut names = String::new();
    for (name, text) in pages {
        let path = directory.join(name);
        let failed = || format!("cannot write {}", path.display());
        std::fs::write(&path, text).with_context(failed)?;
        names.push_str(&format!("{}\n", path.display()));
    }
    print(&names)
}

/// The date of the pages: that of the commit, so that a release has the same ones each time.
fn date() -> &'static str {
    match build::DATE {
        "unknown" => "",
        date => date,
    }
}

/// Adds the page of a command, and those of its subcommands.
fn add_pages(
    pages: &mut Vec<(String, Vec<u8>)>,
    command: &Command,
    is_program: bool,
) -> Result<()> {
    let man = Man::new(command.clone())
        .date(date())
        .source(format!("ordgate {}", build::VERSION))
        .manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    if let Some(help) = command.get_after_long_help().filter(|_| !is_program) {
        // As it is laid out.
        roff.control("SH", ["NOTES"]);
        roff.control("nf", []);
        roff.text([roman(help.to_string())]);
        roff.control("fi", []);
    }
    if is_program {
        sections_of_program(&mut roff);
    } else {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([
            bold("ordgate"),
            roman("(1), "),
            bold("proxy.toml"),
            roman("(5)"),
        ]);
    }
    text.extend(roff.render().into_bytes());
    pages.push((man.get_filename(), text));
    for inner in command.get_subcommands() {
        add_pages(pages, inner, false)?;
    }
    Ok(())
}

/// What the program's page has beside its commands.
fn sections_of_program(roff: &mut Roff) {
    roff.control("SH", ["ENVIRONMENT"]);
    roff.text([roman(
        "Flags take precedence over variables, and variables over the configuration file. An empty variable counts as not set.",
    )]);
    for Variable { name, about } in VARIABLES {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*about)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in [
        (
            "0",
            "The command has succeeded, also if the reader of its output has closed the pipe; serve has drained after SIGTERM or SIGINT.",
        ),
        (
            "1",
            "A running ordgate is not ready or cannot be reached (health), or has refused a purge (purge).",
        ),
        (
            "2",
            "The command line, the configuration or the environment is not valid, or something failed.",
        ),
        ("130", "serve was stopped at once by a second SIGINT."),
    ] {
        roff.control("TP", []);
        roff.text([bold(code)]);
        roff.text([roman(meaning)]);
    }
    roff.control("SH", ["SIGNALS"]);
    roff.text([roman(
        "SIGHUP makes serve read its configuration, keys, tokens and certificates again. SIGTERM and SIGINT let the requests in progress finish.",
    )]);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("proxy.toml"), roman("(5)")]);
}

/// The page of the configuration file, from the declared keys.
fn configuration() -> Vec<u8> {
    let mut roff = Roff::new();
    let source = format!("ordgate {}", build::VERSION);
    roff.control("TH", ["proxy.toml", "5", date(), &source, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("proxy.toml - the configuration of ordgate")]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in [
        "A file in TOML. Anything may be left out. ordgate serve --config FILE uses it; ordgate check --config FILE says what is wrong with it, or prints the values that take effect.",
        "Durations are a whole number with ms, s, m, h or d; sizes with B, KiB, MiB or GiB.",
        "API keys are never in this file: they come from the environment variable ORDGATE_API_KEYS or from the file that upstream.api_keys_file names.",
    ] {
        roff.control("PP", []);
        roff.text([roman(paragraph)]);
    }
    for table in config::tables() {
        roff.control("SH", [&*table.header]);
        for paragraph in table.about.split("\n\n") {
            roff.control("PP", []);
            roff.text([roman(paragraph)]);
        }
        for key in &table.keys {
            key_of(&mut roff, key);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("ordgate"),
        roman("(1), "),
        bold("ordgate-check"),
        roman("(1)"),
    ]);
    roff.render().into_bytes()
}

/// A key: its name, what is allowed, its default and its documentation.
fn key_of(roff: &mut Roff, key: &KeyReference) {
    roff.control("TP", []);
    roff.text([bold(&*key.name)]);
    let otherwise = key.otherwise.replace('`', "");
    roff.text([italic(&*key.allowed), roman(format!(". {otherwise}"))]);
    if !key.about.is_empty() {
        roff.control("IP", []);
        roff.text([roman(&*key.about)]);
    }
}
