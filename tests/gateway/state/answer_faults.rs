//! Faults of the disk: damaged files, a directory that is removed, a file system that is
//! full. None is an error for a client, and none makes an answer wrong.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ordgate::clock::Clock;

use super::answers::{Ground, TIMED, figure, is_from_disk, until_written};
use crate::support::respect::{ALL, ok};
use crate::support::upstream::usual_body;
use crate::support::{Client, Gateway, Process, Reply, Upstream, until, within};

/// All files below a directory.
pub(super) fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    let _before = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}

async fn serves(gateway: &Gateway, what: &str) {
    for name in ["a", "b"] {
        let target = format!("/timed/{name}");
        let answer = gateway.get(&target).await;
        assert_eq!(answer.status, 200, "{what}");
        assert_eq!(answer.text(), usual_body(&target), "{what}");
    }
}

#[tokio::test]
async fn damaged_files_give_no_wrong_and_no_purged_answer() {
    let mut ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    gateway.get("/timed/a").await;
    gateway.get("/timed/purged").await;
    until_written(&gateway, 2).await;
    gateway.purge("url=/timed/purged").await;
    gateway.get("/timed/b").await;
    gateway.end().await;
    let saved = tempfile::tempdir().unwrap();
    copy(ground.directory.path(), saved.path());
    let names = files(&saved.path().join("answers"));
    assert!(names.len() >= 3, "{names:?}");
    // Without damage, both are there.
    ground.directory = tempfile::tempdir().unwrap();
    copy(saved.path(), ground.directory.path());
    let gateway = ground.start().await;
    for target in ["/timed/a", "/timed/b"] {
        assert!(is_from_disk(&gateway.get(target).await), "{target}");
    }
    gateway.end().await;
    for path in names {
        let name = path.strip_prefix(saved.path()).unwrap();
        let len = fs::metadata(&path).unwrap().len();
        for damage in 0..4 {
            let what = format!("{} of {len} bytes, damage {damage}", name.display());
            // A directory of its own each time: nothing of the last one is in it.
            ground.directory = tempfile::tempdir().unwrap();
            copy(saved.path(), ground.directory.path());
            let at = ground.directory.path().join(name);
            match damage {
                0 => File::options()
                    .write(true)
                    .open(&at)
                    .unwrap()
                    .set_len(len / 2)
                    .unwrap(),
                1 => File::options()
                    .write(true)
                    .open(&at)
                    .unwrap()
                    .set_len(0)
                    .unwrap(),
                2 => fs::remove_file(&at).unwrap(),
                _ => {
                    let mut bytes = fs::read(&at).unwrap();
                    for byte in bytes.iter_mut().step_by(97) {
                        *byte ^= 0x10;
                    }
                    fs::write(&at, bytes).unwrap();
                }
            }
            let gateway = ground.start().await;
            serves(&gateway, &what).await;
            let purged = gateway.get("/timed/purged").await;
            assert!(!is_from_disk(&purged), "{what}");
            gateway.end().await;
        }
    }
}

/// What an earlier run has stored, which cannot be opened until it is put back.
struct Aside {
    place: PathBuf,
    aside: PathBuf,
}

impl Aside {
    fn put(ground: &Ground) -> Self {
        Self::put_one(ground, "answers")
    }

    fn put_one(ground: &Ground, name: &str) -> Self {
        let at = |name: &str| ground.directory.path().join(name);
        let (place, aside) = (at(name), at("aside"));
        fs::rename(&place, &aside).unwrap();
        fs::write(&place, "in its place").unwrap();
        Self { place, aside }
    }

    fn put_back(&self) {
        fs::remove_file(&self.place).unwrap();
        fs::rename(&self.aside, &self.place).unwrap();
    }
}

async fn is_open(gateway: &Gateway) -> bool {
    let metrics = gateway.admin("/metrics").await;
    metrics.text().contains("\nordgate_disk_open{} 1")
}

/// Has it tried again to open what is on disk, until it is open.
async fn until_open(gateway: &Gateway) {
    gateway.advance(30_000);
    gateway.maintain();
    let opened = async {
        while !is_open(gateway).await {
            tokio::task::yield_now().await;
        }
    };
    within("it is opened", opened).await;
}

#[tokio::test]
async fn what_cannot_be_opened_at_the_start_is_opened_later() {
    for purges in [false, true] {
        let ground = Ground::routes(TIMED);
        let gateway = ground.start().await;
        serves(&gateway, "before").await;
        gateway.get("/timed/c").await;
        gateway.end().await;
        let aside = Aside::put(&ground);
        let clock = Clock::manual();
        let gateway = ground.setup().clock(&clock).start();
        // By the manual clock, the machine was restarted: what was spent is not known.
        gateway.advance(62_000);
        gateway.maintain();
        assert!(!is_from_disk(&gateway.get("/timed/a").await));
        gateway.get("/timed/memory").await;
        assert!(!is_open(&gateway).await);
        if purges {
            let unrecorded = gateway.purge("url=/timed/b").await;
            assert_eq!(
                unrecorded.status, 500,
                "nothing can be said of what is there"
            );
        }
        aside.put_back();
        if !purges {
            gateway.maintain();
            assert!(!is_open(&gateway).await, "a moment after the last attempt");
        }
        until_open(&gateway).await;
        // The purge is recorded now, and nothing else is absent.
        assert_eq!(is_from_disk(&gateway.get("/timed/b").await), !purges);
        assert!(is_from_disk(&gateway.get("/timed/c").await));
        let before = ground.requests().len();
        gateway.get("/timed/memory").await;
        assert_eq!(ground.requests().len(), before, "memory keeps what it had");
        assert_eq!(gateway.purge("url=/timed/c").await.status, 200);
        gateway.get("/timed/d").await;
        until_written(&gateway, 1 + u64::from(purges)).await;
        gateway.end().await;
        let gateway = ground.setup().clock(&clock).start();
        assert!(is_from_disk(&gateway.get("/timed/d").await));
        assert!(is_from_disk(&gateway.get("/timed/b").await));
        assert!(!is_from_disk(&gateway.get("/timed/c").await));
    }
}

#[tokio::test]
async fn a_purge_from_before_it_is_opened_counts_for_the_next_process() {
    let ground = Ground::routes(ALL);
    let stored = ok(&["cache-control: max-age=600"], "one");
    ground.upstream.always(stored);
    let gateway = ground.start().await;
    for target in ["/a", "/b", "/c", "/d"] {
        gateway.get(target).await;
    }
    gateway.end().await;
    let aside = Aside::put(&ground);
    let clock = Clock::manual();
    let gateway = ground.setup().clock(&clock).start();
    gateway.advance(62_000);
    gateway.request("POST", "/b", &[]).await;
    gateway.purge("url=/c").await;
    aside.put_back();
    until_open(&gateway).await;
    gateway.purge("url=/d").await;
    gateway.end().await;
    let gateway = ground.setup().clock(&clock).start();
    for (target, kept) in [("/a", true), ("/b", false), ("/c", false), ("/d", false)] {
        assert_eq!(is_from_disk(&gateway.get(target).await), kept, "{target}");
    }
}

#[tokio::test]
async fn nobody_waits_for_a_disk_that_hangs_as_it_is_opened() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    serves(&gateway, "before").await;
    gateway.end().await;
    let aside = Aside::put(&ground);
    let clock = Clock::manual();
    let gateway = ground.setup().clock(&clock).start();
    gateway.advance(62_000);
    // Whoever opens a pipe waits until somebody writes to it.
    let log = aside.aside.join("purges");
    let known = fs::read(&log).unwrap();
    fs::remove_file(&log).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&log).status();
    assert!(made.unwrap().success());
    aside.put_back();
    let log = aside.place.join("purges");
    gateway.advance(30_000);
    gateway.maintain();
    gateway.maintain();
    assert_eq!(gateway.reload_as_it_is().await.status, 200);
    gateway.maintain();
    serves(&gateway, "while it hangs").await;
    assert!(!is_open(&gateway).await);
    assert_eq!(gateway.purge("url=/timed/b").await.status, 500);
    tokio::task::spawn_blocking(move || fs::write(log, known).unwrap())
        .await
        .unwrap();
    // By the newest configuration, and with what was purged.
    until_open(&gateway).await;
    gateway.get("/timed/c").await;
    until_written(&gateway, 1).await;
    gateway.end().await;
    let gateway = ground.setup().clock(&clock).start();
    for (name, kept) in [("a", true), ("b", false), ("c", true)] {
        let answer = gateway.get(&format!("/timed/{name}")).await;
        assert_eq!(is_from_disk(&answer), kept, "{name}");
    }
}

#[tokio::test]
async fn a_purge_while_the_disk_cannot_be_used_counts_for_the_next_process() {
    for (purges, kept) in [(false, true), (true, false)] {
        let ground = Ground::routes(TIMED);
        let gateway = ground.start().await;
        serves(&gateway, "before").await;
        gateway.end().await;
        let aside = Aside::put_one(&ground, "answers/responses");
        let gateway = ground.start().await;
        assert!(!is_from_disk(&gateway.get("/timed/a").await));
        if purges {
            assert_eq!(gateway.purge("url=/timed/b").await.status, 200);
        }
        gateway.end().await;
        aside.put_back();
        let gateway = ground.start().await;
        assert_eq!(is_from_disk(&gateway.get("/timed/b").await), kept);
        gateway.end().await;
    }
}

#[tokio::test]
async fn what_a_post_removes_while_the_disk_cannot_be_used_is_not_believed_once_it_is_answered() {
    let ground = Ground::routes(ALL);
    let stored = ok(&["cache-control: max-age=600"], "one");
    ground.upstream.always(stored);
    let gateway = ground.start().await;
    gateway.get("/a").await;
    gateway.end().await;
    Aside::put_one(&ground, "answers/responses");
    let log = ground.directory.path().join("answers/purges");
    let gateway = ground.start().await;
    assert!(log.exists());
    gateway.request("POST", "/a", &[]).await;
    // Already now: the process may be killed next.
    assert!(!log.exists());
}

#[tokio::test]
async fn the_time_of_the_last_eviction_is_told() {
    let ground = Ground::routes(TIMED);
    let random = Mutex::new(fastrand::Rng::with_seed(1));
    ground.upstream.usually(move |_| {
        let mut random = random.lock().unwrap();
        // It can hardly be compressed.
        let text: String = (0..1 << 15).map(|_| random.alphanumeric()).collect();
        Reply::json(format!("\"{text}\""))
    });
    let setup = ground.setup().config("state.max_bytes = \"32MiB\"");
    let gateway = setup.clock(&Clock::manual()).start();
    let last =
        || gateway.status()["state_directory"]["answers"]["last_eviction_seconds_ago"].clone();
    assert_eq!(gateway.get("/timed/first").await.status, 200);
    until_written(&gateway, 1).await;
    assert_eq!(last(), serde_json::Value::Null);
    let evicts = async {
        let mut written = 1;
        while last().is_null() {
            written += 1;
            gateway.get(&format!("/timed/{written}")).await;
            until_written(&gateway, written).await;
        }
    };
    within("something is evicted", evicts).await;
    assert_eq!(last(), 0);
    gateway.advance(7_000);
    assert_eq!(last(), 7);
}

#[tokio::test]
async fn a_directory_that_is_removed_while_it_is_used_is_no_error() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    serves(&gateway, "before").await;
    until_written(&gateway, 2).await;
    fs::remove_dir_all(ground.directory.path().join("answers")).unwrap();
    serves(&gateway, "after").await;
    assert_eq!(gateway.purge("all").await.status, 500, "it is not recorded");
    let paused = || gateway.status()["state_directory"]["answers"]["paused"]["purges"] == true;
    until("the fault is shown", paused).await;
    serves(&gateway, "after a purge").await;
    gateway.end().await;
    let gateway = ground.start().await;
    serves(&gateway, "after a restart").await;
}

#[tokio::test]
async fn a_purge_log_that_is_removed_while_it_is_used_is_written_anew() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    serves(&gateway, "before").await;
    until_written(&gateway, 2).await;
    fs::remove_file(ground.directory.path().join("answers/purges")).unwrap();
    assert_eq!(gateway.purge("url=/timed/b").await.status, 200);
    let gateway = ground.restart(gateway).await;
    assert!(is_from_disk(&gateway.get("/timed/a").await));
    assert!(!is_from_disk(&gateway.get("/timed/b").await));
}

#[tokio::test]
async fn requests_do_not_keep_the_disk_from_being_tried_again() {
    let ground = Ground::routes(ALL);
    ground
        .upstream
        .always(ok(&["cache-control: max-age=600"], "one"));
    let gateway = ground.start().await;
    gateway.get("/a").await;
    until_written(&gateway, 1).await;
    let answers = ground.directory.path().join("answers");
    let away = ground.directory.path().join("away");
    fs::rename(&answers, &away).unwrap();
    let paused = || gateway.status()["state_directory"]["answers"]["paused"]["purges"].clone();
    until("the fault is seen", || paused() == true).await;
    fs::rename(&away, &answers).unwrap();
    // Each POST is a removal that cannot be recorded while the log is lost.
    let is_kept = async {
        let mut number = 0;
        while figure(&gateway, "written") < 2 {
            gateway.request("POST", "/b", &[]).await;
            gateway.get(&format!("/c/{number}")).await;
            gateway.advance(20);
            number += 1;
        }
        number
    };
    let kept = within("responses are kept again", is_kept).await;
    let gateway = ground.restart(gateway).await;
    assert!(is_from_disk(
        &gateway.get(&format!("/c/{}", kept - 1)).await
    ));
}

#[tokio::test]
async fn a_second_process_serves_without_until_the_first_has_ended() {
    for purges in [false, true] {
        let ground = Ground::routes(TIMED);
        let gateway = ground.start().await;
        serves(&gateway, "before").await;
        until_written(&gateway, 2).await;
        let second = ground.start().await;
        let answers = || second.status()["state_directory"]["answers"].clone();
        assert!(!is_from_disk(&second.get("/timed/a").await));
        assert_eq!(answers(), serde_json::Value::Null);
        if purges {
            // The first knows nothing of it.
            assert_eq!(second.purge("url=/timed/b").await.status, 200);
        }
        gateway.end().await;
        until("the directory is used", || !answers().is_null()).await;
        assert_eq!(is_from_disk(&second.get("/timed/b").await), !purges);
        until("purges are recorded", || {
            figure(&second, "purge_log_bytes") > 0
        })
        .await;
        second.get("/timed/c").await;
        until_written(&second, 1).await;
        let gateway = ground.restart(second).await;
        assert!(is_from_disk(&gateway.get("/timed/c").await));
    }
}

#[tokio::test]
async fn a_purge_beside_a_process_with_the_directory_counts_for_the_next_one() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    serves(&gateway, "before").await;
    until_written(&gateway, 2).await;
    let second = ground.start().await;
    assert_eq!(second.purge("url=/timed/b").await.status, 200);
    second.end().await;
    let gateway = ground.restart(gateway).await;
    assert!(!is_from_disk(&gateway.get("/timed/b").await));
}

#[tokio::test]
async fn a_full_disk_pauses_the_tier_and_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("proxy.toml");
    fs::write(&config, TIMED).unwrap();
    let upstream = Upstream::start();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (state, config, urls) = (at("state"), at("proxy.toml"), upstream.flags());
    let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    arguments.extend(["--state", &state, "--config", &config]);
    arguments.extend(urls.iter().map(String::as_str));
    let process = Process::start_on_full_disk(32, &arguments);
    let (public, admin) = process.ready();
    let mut client = Client::connect(public).await;
    for n in 0..300 {
        let target = format!("/timed/{n}-{}", fastrand::u128(..));
        assert_eq!(client.get(&target).await.text(), usual_body(&target));
    }
    until("the fault is logged", || {
        process
            .errors()
            .contains("stored responses cannot be written to disk")
    })
    .await;
    let mut operator = Client::connect(admin).await;
    let status = operator.get("/status").await;
    let answers = status.json()["state_directory"]["answers"].clone();
    assert_eq!(answers["paused"]["writing"], true, "{answers}");
    assert!(answers["errors"].as_u64() > Some(0), "{answers}");
    assert!(
        operator
            .get("/metrics")
            .await
            .text()
            .contains("ordgate_disk_paused{what=\"writing\"} 1")
    );
    assert_eq!(client.get("/timed/still").await.status, 200);
    assert_eq!(
        operator.request("POST", "/purge?all", &[]).await.status,
        200
    );
    let log = process.errors();
    assert_eq!(log.matches("cannot be written to disk").count(), 1, "{log}");
}
