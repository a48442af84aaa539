//! Help, version, man pages and completions.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::Process;

/// The commands, as their man pages are named.
const COMMANDS: [&str; 12] = [
    "",
    "-serve",
    "-sandbox",
    "-check",
    "-schema",
    "-purge",
    "-health",
    "-token",
    "-token-new",
    "-openapi",
    "-man",
    "-completions",
];

#[test]
fn the_help_of_each_command_fits_one_screen() {
    for command in COMMANDS {
        for flag in ["--help", "-h"] {
            let words = command.split('-').filter(|word| !word.is_empty());
            let arguments: Vec<_> = words.chain([flag]).collect();
            let left = Process::run(&arguments, &[]);
            assert_eq!(left.code(), Some(0), "{arguments:?}: {}", left.errors);
            assert!(left.out.contains("Usage: ordgate"), "{}", left.out);
            let lines = left.out.lines().count();
            let widest = left.out.lines().map(|line| line.chars().count()).max();
            assert!(lines <= 40, "{arguments:?} has {lines} lines");
            assert!(widest <= Some(100), "{arguments:?} has {widest:?} columns");
        }
    }
    let check = Process::run(&["check", "--help"], &[]).out;
    let (options, sandbox) = check.split_once("Sandbox:").unwrap();
    assert!(options.contains("--all") && !sandbox.contains("--all"));
    let sandbox = Process::run(&["help", "sandbox"], &[]).out;
    assert!(sandbox.contains("/sandbox/rollback") && sandbox.contains("delay=MS"));
    let refers = "ordgate help sandbox` explains";
    assert!(!sandbox.contains(refers), "to itself: {sandbox}");
    let short = Process::run(&["sandbox", "--help"], &[]).out;
    assert!(short.contains(refers), "{short}");
    let whole = Process::run(&["help", "serve"], &[]).out;
    assert!(whole.contains("STATE_DIRECTORY"), "the long text: {whole}");
}

#[test]
fn the_version_is_that_of_the_library() {
    let left = Process::run(&["--version"], &[]);
    let version = format!("ordgate {}\n", ordgate::build::LONG_VERSION);
    assert_eq!(left.out, version);
    assert!(version.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn each_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("new").join("man");
    let left = Process::run(&["man", &pages.display().to_string()], &[]);
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    let read = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    for command in COMMANDS {
        let text = read(&format!("ordgate{command}.1"));
        for part in [
            ".TH ordgate",
            ".SH NAME",
            ".SH SYNOPSIS",
            ".SH \"SEE ALSO\"",
        ] {
            assert!(text.contains(part), "ordgate{command}.1 has no {part}");
        }
    }
    assert!(read("ordgate-sandbox.1").contains("/sandbox/journal"));
    let program = read("ordgate.1");
    assert!(program.contains("ORDGATE_SHARED_URL") && program.contains("\"EXIT STATUS\""));
    let configuration = read("proxy.toml.5");
    for part in ["[upstream.retry]", "[[route]]", "requests_per_minute"] {
        assert!(configuration.contains(part), "proxy.toml.5 has no {part}");
    }
    assert_eq!(left.out.lines().count(), COMMANDS.len() + 1, "{}", left.out);
    // A directory that cannot be made.
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().join("man").display().to_string();
    let left = Process::run(&["man", &path], &[]);
    assert_eq!(left.code(), Some(2));
    assert!(left.errors.contains("cannot create"), "{}", left.errors);
}

#[test]
fn shells_have_completions() {
    for (shell, part) in [
        ("bash", "complete -F _ordgate"),
        ("zsh", "#compdef ordgate"),
        ("fish", "complete -c ordgate"),
    ] {
        let left = Process::run(&["completions", shell], &[]);
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        for part in [part, "upstream", "block-every", "completions"] {
            assert!(left.out.contains(part), "{shell} has no {part}");
        }
    }
    let left = Process::run(&["completions", "powershell"], &[]);
    assert_eq!(left.code(), Some(2));
    assert!(left.errors.contains("bash, zsh, fish"), "{}", left.errors);
}

#[test]
fn output_that_cannot_be_written_is_reported_and_a_closed_pipe_is_not() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for (out, code, errors) in [
        (
            Stdio::from(full),
            2,
            "ordgate: cannot write to standard output: No space left on device (os error 28)\n",
        ),
        (Stdio::from(closed), 0, ""),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ordgate"));
        let output = command.arg("schema").stdout(out).output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), errors);
        assert_eq!(output.status.code(), Some(code));
    }
}

/// What the build script says when it runs in a directory with these variables.
fn build(script: &Path, directory: &Path, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(script);
    command.current_dir(directory);
    command.env_remove("ORDGATE_BUILD_COMMIT");
    command.env_remove("SOURCE_DATE_EPOCH");
    command.env("CARGO_PKG_VERSION", "1.2.3");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_build_needs_no_repository_to_know_its_commit() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
        .args(["--edition=2024", source, "-o"])
        .arg(&script)
        .status();
    assert!(status.unwrap().success());
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let filled = format!("{commit} 951782400\n");
    for (file, variables, version) in [
        (None, &[("PROFILE", "debug")][..], "1.2.3"),
        // There is no repository either.
        (None, &[("PROFILE", "release")], "1.2.3"),
        (
            None,
            &[("ORDGATE_BUILD_COMMIT", commit)],
            "1.2.3 (0123456789ab)",
        ),
        (
            None,
            &[
                ("ORDGATE_BUILD_COMMIT", "v1.2.3"),
                ("SOURCE_DATE_EPOCH", "1795424400"),
            ],
            "1.2.3 (v1.2.3 2026-11-23)",
        ),
        (Some("$Format:%H %ct$"), &[], "1.2.3"),
        (Some(&*filled), &[], "1.2.3 (0123456789ab 2000-02-29)"),
        (
            Some(&*filled),
            &[("SOURCE_DATE_EPOCH", "1709251199")],
            "1.2.3 (0123456789ab 2024-02-29)",
        ),
    ] {
        let place = tempfile::tempdir_in(directory.path()).unwrap();
        if let Some(text) = file {
            std::fs::write(place.path().join("build-commit"), text).unwrap();
        }
        let said = build(&script, place.path(), variables);
        let line = format!("cargo::rustc-env=ORDGATE_VERSION={version}\n");
        assert!(said.contains(&line), "{file:?} {variables:?}: {said}");
    }
}
