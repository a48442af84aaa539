//! Help, version, man pages and completions.

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
    for part in [
        "[upstream.response_body]",
        "[[route]]",
        "requests_per_minute",
    ] {
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
