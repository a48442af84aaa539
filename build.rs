//! Records what the program is built from, for `ordgate --version` and the metrics: the
//! commit, its date, and the compiler.
//!
//! The first of these that has the commit is used:
//!
//! 1. The environment variable `ORDGATE_BUILD_COMMIT`.
//! 2. The file `build-commit`, which `git archive` fills in.
//! 3. The git repository, for optimized builds only: otherwise each commit would rebuild the
//!    crate for those who work on it.
//!
//! The date is that of `SOURCE_DATE_EPOCH`, if it is set, else that of the commit. Neither
//! git nor a network is needed, and nothing is read from the clock.

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// What is said of a commit, a date or a compiler that is not known.
const UNKNOWN: &str = "unknown";
/// What of the repository the program is built from.
const SOURCES: [&str; 5] = ["src", "build.rs", "proxy.toml", "Cargo.toml", "Cargo.lock"];
/// The file that a source archive has its commit in.
const ARCHIVE_FILE: &str = "build-commit";

/// A commit, and its time in seconds since 1970, if it is known.
struct Commit {
    name: String,
    time: Option<u64>,
}

fn main() {
    let mut lines = vec![
        "rerun-if-env-changed=ORDGATE_BUILD_COMMIT".to_owned(),
        "rerun-if-env-changed=SOURCE_DATE_EPOCH".to_owned(),
        "rerun-if-changed=build.rs".to_owned(),
        format!("rerun-if-changed={ARCHIVE_FILE}"),
    ];
    let commit = of_environment().or_else(of_archive);
    let is_optimized = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = match commit {
        None if is_optimized => of_git(&mut lines),
        commit => commit,
    };
    let epoch = env::var("SOURCE_DATE_EPOCH").ok();
    let epoch = epoch.and_then(|text| text.trim().parse().ok());
    let time = epoch.or(commit.as_ref().and_then(|commit| commit.time));
    let name = commit.map_or_else(|| UNKNOWN.to_owned(), |commit| commit.name);
    let date = time.map_or_else(|| UNKNOWN.to_owned(), date);
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let known = [&*name, &*date].map(|text| Some(text).filter(|text| *text != UNKNOWN));
    let known: Vec<_> = known.into_iter().flatten().collect();
    let version = match &known[..] {
        [] => version,
        known => format!("{version} ({})", known.join(" ")),
    };
    lines.push(format!("rustc-env=ORDGATE_VERSION={version}"));
    lines.push(format!("rustc-env=ORDGATE_COMMIT={name}"));
    lines.push(format!("rustc-env=ORDGATE_DATE={date}"));
    lines.push(format!("rustc-env=ORDGATE_RUSTC={}", compiler()));
    let mut out = std::io::stdout().lock();
    for line in lines {
        // Without standard output, cargo is gone.
        let _ = writeln!(out, "cargo::{line}");
    }
}

fn of_environment() -> Option<Commit> {
    let name = env::var("ORDGATE_BUILD_COMMIT").ok()?;
    is_name(name.trim()).then(|| Commit {
        name: short(name.trim()),
        time: None,
    })
}

/// The commit of a source archive. In a repository, the file has a placeholder instead.
fn of_archive() -> Option<Commit> {
    let text = std::fs::read_to_string(ARCHIVE_FILE).ok()?;
    let (name, time) = text.trim().split_once(' ')?;
    is_name(name).then(|| Commit {
        name: short(name),
        time: time.parse().ok(),
    })
}

/// The commit that is checked out, with `+` after it if the sources differ from it.
fn of_git(lines: &mut Vec<String>) -> Option<Commit> {
    // A repository that only contains this directory has other commits.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = env::current_dir().ok()?.canonicalize().ok()?;
    if Path::new(&top).canonicalize().ok()? != here {
        return None;
    }
    let head = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(head.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name])?;
        // One that is not there would have this script run each time.
        if Path::new(&path).exists() {
            lines.push(format!("rerun-if-changed={path}"));
        }
    }
    lines.extend(SOURCES.map(|path| format!("rerun-if-changed={path}")));
    let told = git(&["log", "-1", "--format=%H %ct"])?;
    let (name, time) = told.split_once(' ')?;
    let differs = [&["diff", "--quiet", "HEAD", "--"][..], &SOURCES].concat();
    let mark = if git(&differs).is_none() { "+" } else { "" };
    Some(Commit {
        name: short(name) + mark,
        time: time.parse().ok(),
    })
}

/// What a git command prints, if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The compiler's version.
fn compiler() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().ok();
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let version = text.and_then(|text| Some(text.split_whitespace().nth(1)?.to_owned()));
    version.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// Whether a text may be the name of a commit or of a tag.
fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
    (1..=64).contains(&text.len()) && text.chars().all(is_allowed)
}

/// The first twelve digits of a commit's name.
fn short(name: &str) -> String {
    name.chars().take(12).collect()
}

/// A time in seconds since 1970 as a date in UTC, such as 2026-11-23.
fn date(seconds: u64) -> String {
    // Howard Hinnant's algorithm: eras of 400 years that begin on 1 March.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
