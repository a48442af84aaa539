//! The state directory: where it comes from, and when it is refused.

mod answer_faults;
mod answer_kills;
mod answers;
mod cooldowns;
mod faults;
mod kills;
mod reorgs;
mod replicas;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use answers::is_from_disk;
use ordgate::sandbox::{Sandbox, Settings};
use rustix::process::Signal;
use serde_json::Value;

use crate::chain::block;
use crate::support::{Client, Process, within};

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
async fn a_second_process_says_so_and_runs_without_until_the_first_has_ended() {
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
    drop(first);
    within("it uses the directory", async {
        while status(admin).await["answers"].is_null() {}
    })
    .await;
    let told = status(admin).await;
    assert_eq!(told["status"], "open", "{told}");
    assert_eq!(told["spend_journal"]["status"], "written", "{told}");
    assert!(second.errors().contains("has ended: this one uses it now"));
    assert!(told["answers"]["entries"].is_u64(), "{told}");
    drop(second);
    let (_third, _, admin) = Process::serve(&flags, &[]);
    assert_eq!(status(admin).await["status"], "open");
}

#[tokio::test]
async fn answers_of_the_sandbox_outlive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let sandbox = Sandbox::new(Settings::default());
    let target = block(sandbox.tip().height - 20);
    for is_stored in [false, true] {
        let (process, public, _) = Process::serve(&["--sandbox", "--state", &path], &[]);
        let answer = Client::connect(public).await.get(&target).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(is_from_disk(&answer), is_stored, "{answer:?}");
        process.signal(Signal::TERM);
        assert_eq!(process.wait().code(), Some(0));
    }
}

#[tokio::test]
async fn files_of_another_version_are_deleted_and_said() {
    let directory = tempfile::tempdir().unwrap();
    // The check line is the digest of the others.
    let version = "ordgate state 9\nsalt 0\ncheck 50470ebe9ef60734\n";
    fs::write(directory.path().join("format"), version).unwrap();
    fs::write(directory.path().join("other"), "of version 9").unwrap();
    let path = directory.path().display().to_string();
    let checked = Process::run(&["check", "--sandbox", "--state", &path], &[]);
    assert_eq!(checked.code(), Some(0), "{}", checked.errors);
    let flags = ["--sandbox", "--state", &path];
    let (process, _, admin) = Process::serve(&flags, &[]);
    assert_eq!(status(admin).await["status"], "open");
    assert!(!directory.path().join("other").exists());
    let errors = process.errors();
    assert!(
        errors.contains("whose files have version 9 and not 1"),
        "{errors}"
    );
}

#[test]
fn check_refuses_what_serve_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["open", "foreign"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::set_permissions(at("open"), Permissions::from_mode(0o770)).unwrap();
    fs::write(at("foreign").join("a"), "").unwrap();
    fs::write(at("file"), "").unwrap();
    for (name, expected) in [
        ("missing/state", "create "),
        ("file", "it is a file; allowed is a directory"),
        ("open", "its group can write to it"),
        ("foreign", "it has \"a\" and no file of ordgate's"),
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
