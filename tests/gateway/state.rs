//! The state directory: where it comes from, and when it is refused.

mod answer_faults;
mod answer_kills;
mod answers;
mod faults;
mod kills;
mod reorgs;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::{Client, Process};

async fn status(admin: std::net::SocketAddr) -> Value {
    let answer = Client::connect(admin).await.get("/status").await;
    answer.json()["state_directory"].clone()
}

#[tokio::test]
async fn a_flag_overrides_a_variable_and_that_the_file_and_that_systemd() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name).display().to_string();
    let config = at("proxy.toml");
    fs::write(&config, format!("state.path = \"{}\"\n", at("file"))).unwrap();
    let two = format!("{}:{}", at("systemd"), at("other"));
    let variables = [
        ("STATE_DIRECTORY", &*two),
        ("ORDGATE_CONFIG", &*config),
        ("ORDGATE_STATE", &*at("variable")),
    ];
    let flag = at("flag");
    let flags = ["--sandbox", "--state", &flag];
    for (flags, variables, expected) in [
        (&flags[..1], &variables[..0], None),
        (&flags[..1], &variables[..1], Some("systemd")),
        (&flags[..1], &variables[..2], Some("file")),
        (&flags[..1], &variables[..3], Some("variable")),
        (&flags[..], &variables[..3], Some("flag")),
    ] {
        let left = Process::run(&[&["check"], flags].concat(), variables);
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        let line = expected.map(|name| format!("\npath = \"{}\"\n", at(name)));
        let has = |line: &String| left.out.contains(&format!("[state]{line}"));
        assert_eq!(line.as_ref().is_some_and(has), expected.is_some());
        let (process, _, admin) = Process::serve(flags, variables);
        let told = status(admin).await;
        assert_eq!(told["path"].as_str(), expected.map(at).as_deref(), "{told}");
        let mut made: Vec<_> = fs::read_dir(parent.path()).unwrap().collect();
        made.retain(|entry| entry.as_ref().unwrap().path().is_dir());
        assert_eq!(made.len(), usize::from(expected.is_some()), "{made:?}");
        drop(process);
        if let Some(name) = expected {
            fs::remove_dir_all(at(name)).unwrap();
        }
    }
}

#[tokio::test]
async fn a_second_process_says_so_and_runs_without() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let flags = ["--sandbox", "--state", &*path];
    let (first, _, admin) = Process::serve(&flags, &[]);
    assert_eq!(status(admin).await["status"], "open");
    let (second, _, admin) = Process::serve(&flags, &[]);
    assert_eq!(status(admin).await["status"], "in use by another process");
    let errors = second.errors();
    let expected = "another process uses the state directory: this one keeps nothing on disk";
    assert!(errors.contains(expected), "{errors}");
    drop((first, second));
    let (_third, _, admin) = Process::serve(&flags, &[]);
    assert_eq!(status(admin).await["status"], "open");
}

#[test]
fn check_refuses_what_serve_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["open", "foreign", "version"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::set_permissions(at("open"), Permissions::from_mode(0o770)).unwrap();
    fs::write(at("foreign").join("a"), "").unwrap();
    // The check line is the digest of the others.
    let version = "ordgate state 9\nsalt 0\ncheck 50470ebe9ef60734\n";
    fs::write(at("version").join("format"), version).unwrap();
    fs::write(at("file"), "").unwrap();
    for (name, expected) in [
        ("missing/state", "create "),
        ("file", "it is a file; allowed is a directory"),
        ("open", "its group can write to it"),
        ("foreign", "it has \"a\" and no file of ordgate's"),
        ("version", "its files have version 9"),
    ] {
        let path = at(name).display().to_string();
        for command in ["check", "serve"] {
            let left = Process::run(&[command, "--sandbox", "--state", &path], &[]);
            assert_eq!(left.code(), Some(2), "{command} {name}: {}", left.errors);
            let begins = format!("ordgate: state.path {path}: ");
            assert!(left.errors.contains(&begins), "{}", left.errors);
            assert!(left.errors.contains(expected), "{}", left.errors);
            assert_eq!(left.out, "");
        }
    }
}
