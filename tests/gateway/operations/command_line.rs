//! Help, man pages and completions.

use crate::support::Process;

/// The commands, as their man pages are named.
const COMMANDS: &str =
    "serve sandbox check schema purge health token token-new openapi man completions";

#[test]
fn each_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("new").join("man");
    let left = Process::run(&["man", &pages.display().to_string()], &[]);
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    let read = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let names: Vec<_> = COMMANDS
        .split(' ')
        .map(|name| format!("ordgate-{name}.1"))
        .collect();
    for name in names.iter().map(|name| &**name).chain(["ordgate.1"]) {
        for part in [".TH ordgate", ".SH NAME", ".SH SYNOPSIS"] {
            assert!(read(name).contains(part), "{name} has no {part}");
        }
    }
    for (name, part) in [
        ("ordgate-sandbox.1", "/sandbox/journal"),
        ("ordgate.1", "ORDGATE_SHARED_URL"),
        ("ordgate.1", "Exit codes"),
        ("ordgate-serve.1", "ORDGATE_LISTEN"),
        ("proxy.toml.5", "silence_timeout"),
        ("proxy.toml.5", "[[route]]"),
    ] {
        assert!(read(name).contains(part), "{name} has no {part}");
    }
    assert!(left.out.contains(pages.to_str().unwrap()), "{}", left.out);
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
            left.printed(part);
        }
    }
}
