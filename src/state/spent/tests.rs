//! What was spent, over restarts, kills, boots and damage.

use std::io::{self, BufRead, BufReader};
use std::process::{Command as Process, Stdio};

use super::*;
use crate::state::tests::{Place, UNUSABLE};
use crate::state::{Settings, State};

const KEY: KeyDigest = [7; 32];
const OTHER: KeyDigest = [8; 32];

/// Once it is committed.
async fn begin(spent: &Spent, key: KeyDigest) -> SpentId {
    let (id, committed) = spent.begin(key);
    committed.await;
    id
}

fn seconds(all: &[u64]) -> Vec<Duration> {
    all.iter().map(|age| Duration::from_secs(*age)).collect()
}

fn after(place: &Place, age: u64) {
    place.clock.advance(Duration::from_secs(age));
}

#[tokio::test]
async fn the_next_process_knows_what_was_spent() {
    let place = Place::new();
    let spent = place.open().spent;
    assert_eq!(spent.earlier(&KEY), Earlier::default(), "a first start");
    let ended = begin(&spent, KEY).await;
    after(&place, 10);
    spent.end(ended);
    let canceled = begin(&spent, KEY).await;
    spent.cancel(canceled);
    begin(&spent, KEY).await;
    begin(&spent, OTHER).await;
    after(&place, 5);
    drop(spent);
    let spent = place.open().spent;
    // What was under way counts from the start.
    assert_eq!(spent.earlier(&KEY).ages, seconds(&[5, 0]));
    after(&place, 3);
    assert_eq!(spent.earlier(&KEY).ages, seconds(&[8, 3]));
    assert_eq!(spent.earlier(&OTHER).ages, seconds(&[3]));
    let id = begin(&spent, KEY).await;
    spent.end(id);
    drop(spent);
    let spent = place.open().spent;
    // What was found at the start before this one; and then what still counts.
    assert_eq!(spent.earlier(&KEY).ages, seconds(&[8, 3, 0]));
    after(&place, 54);
    assert_eq!(spent.earlier(&KEY).ages, seconds(&[57, 54]));
}

/// Where a child of this test is to spend.
const CHILD: &str = "ORDGATE_TEST_SPENDS_IN";

#[test]
fn a_process_that_is_killed_loses_nothing() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let clock = Clock::machine();
    let open = |path| {
        let max_bytes = 1 << 20;
        let state = State::open(&Settings { path, max_bytes }, &clock);
        state.unwrap().spent
    };
    if let Ok(path) = std::env::var(CHILD) {
        let spent = open(path.into());
        runtime.block_on(async {
            for count in 0.. {
                begin(&spent, KEY).await;
                eprintln!("{CHILD} {count}");
            }
        });
    }
    for kill_after in [1, 20, 700] {
        let place = Place::new();
        let name = thread::current().name().unwrap().to_owned();
        let mut child = Process::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env(CHILD, place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = |line: &io::Result<String>| line.as_ref().unwrap().starts_with(CHILD);
        let before = lines.by_ref().filter(said).take(kill_after).count();
        child.kill().unwrap();
        child.wait().unwrap();
        let sent = before + lines.filter(said).count();
        let earlier = open(place.path().into()).earlier(&KEY);
        assert!(before == kill_after && sent >= kill_after);
        // A kill in the middle of a commit may leave a log that cannot be told from damage.
        let is_unknown = earlier.unknown_for > millis(WINDOW - 5000);
        let found = earlier.ages.len();
        assert!(is_unknown || found >= sent, "{earlier:?} of {sent}");
        assert!(found <= sent + 1);
    }
}

/// What is known at another boot.
fn at_boot(place: &Place, boot: &str) -> (usize, u64) {
    let now = now(&place.clock);
    let path = place.path().join("spent.db");
    // Its thread closes it first.
    let _lock = crate::state::lock(place.path(), crate::state::PATIENCE).unwrap();
    let (_journal, (ended, unknown_until)) = Journal::open(&path, boot, now).unwrap();
    (ended.len(), millis(unknown_until - now).as_secs())
}

#[tokio::test]
async fn another_boot_waits_a_window_out() {
    let place = Place::new();
    assert_eq!(at_boot(&place, "one"), (0, 0));
    assert_eq!(at_boot(&place, "two"), (0, 0), "nothing was spent");
    let path = place.path().join("spent.db");
    let mut journal = Journal::open(&path, "two", 0).unwrap().0;
    let id = SpentId {
        number: 1,
        key: KEY,
    };
    journal.write(&Command::Put(id, None, None), 0).unwrap();
    drop(journal);
    assert_eq!(at_boot(&place, "two"), (1, 0));
    assert_eq!(at_boot(&place, "three"), (0, 61));
    after(&place, 30);
    // A start within the window.
    assert_eq!(at_boot(&place, "three"), (0, 31));
    assert_eq!(at_boot(&place, "four"), (0, 61), "it was not over");
    after(&place, 61);
    assert_eq!(at_boot(&place, "four"), (0, 0));
}

/// A directory in which something was spent, some of it in the log.
async fn spent() -> Place {
    let place = Place::new();
    let spent = place.open().spent;
    begin(&spent, KEY).await;
    drop(spent);
    let spent = place.open().spent;
    let ended = begin(&spent, KEY).await;
    spent.end(ended);
    begin(&spent, OTHER).await;
    place.as_killed()
}

#[tokio::test]
async fn what_cannot_be_read_is_waited_out() {
    let place = spent().await;
    assert_eq!(at_boot(&place, &boot_id()), (3, 0));
    fs::remove_file(place.path().join("spent.db")).unwrap();
    assert_eq!(at_boot(&place, &boot_id()), (0, 0), "it is removed");
    let rows = [
        "UPDATE spent SET at = 0",
        "UPDATE spent SET key = zeroblob(32)",
        "UPDATE run SET unknown_until = 1",
        "DELETE FROM run",
    ];
    for how in [&UNUSABLE[..], &rows].concat() {
        let place = spent().await;
        place.spoil("spent.db", how);
        for _ in 0..2 {
            assert_eq!(at_boot(&place, &boot_id()), (0, 61), "{how}");
        }
    }
}

#[tokio::test]
async fn any_byte_may_be_damaged() {
    let place = spent().await;
    let boot = boot_id();
    let mut known = 0;
    for (name, stride) in [("spent.db", 23), ("spent.db-wal", 31)] {
        let content = fs::read(place.path().join(name)).unwrap();
        let mut check = |changed: &[u8], what: String| {
            let copy = place.as_killed();
            fs::write(copy.path().join(name), changed).unwrap();
            match at_boot(&copy, &boot) {
                (3, 0) => known += 1,
                found => assert_eq!(found, (0, 61), "{name} {what}"),
            }
        };
        for at in (0..content.len()).step_by(stride) {
            let mut changed = content.clone();
            changed[at] ^= 0x41;
            check(&changed, format!("byte {at}"));
        }
        // Where a transaction ends, a cut cannot be seen.
        let is_end = |at: &usize| name != "spent.db" && (at - 32).is_multiple_of(24 + 4096);
        for at in (509..content.len()).step_by(509).filter(|at| !is_end(at)) {
            check(&content[..at], format!("cut at {at}"));
        }
    }
    assert!(known > 100, "bytes that mean nothing: {known}");
}

#[tokio::test]
async fn after_an_error_nothing_is_recorded() {
    let place = Place::new();
    drop(place.open());
    let trigger = "CREATE TRIGGER no BEFORE INSERT ON spent
        BEGIN SELECT RAISE(ABORT, 'it cannot be inserted'); END";
    place.change("spent.db", trigger);
    let spent = place.open().spent;
    let id = begin(&spent, KEY).await;
    let fault = || spent.snapshot().unwrap()["fault"].clone();
    while fault().is_null() {
        tokio::task::yield_now().await;
    }
    assert_eq!(fault(), "it cannot be inserted");
    spent.end(id);
    // Another process that tries meanwhile leaves it as it is.
    let other = State::open_within(&place.settings(), &place.clock, Duration::ZERO);
    assert!(other.is_err());
    drop(spent);
    let spent = place.open().spent;
    let unknown = spent.snapshot().unwrap()["unknown_seconds"].clone();
    assert_eq!(
        (spent.earlier(&KEY).unknown_for, unknown),
        (millis(WINDOW), json!(61.0))
    );
    begin(&spent, KEY).await;
    assert!(spent.snapshot().unwrap()["fault"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_commit_over_a_second_ends_the_recording() {
    let place = Place::new();
    let path = place.path().join("spent.db");
    let journal = Journal::open(&path, "boot", 0).unwrap().0;
    let (commands, received) = mpsc::sync_channel(MOST_WAITING);
    let fault = Arc::new(Fault::new());
    let spent = Spent(Some(Arc::new(Handle {
        commands,
        clock: place.clock.clone(),
        earlier: Found::default(),
        fault: Arc::clone(&fault),
        _lock: Arc::new(File::open(place.path()).unwrap()),
    })));
    let began = tokio::time::Instant::now();
    begin(&spent, KEY).await;
    assert_eq!(began.elapsed(), COMMIT);
    begin(&spent, KEY).await;
    assert_eq!(began.elapsed(), COMMIT, "the next one does not wait");
    assert!(spent.snapshot().unwrap()["fault"].is_string());
    drop(spent);
    run(journal, &received, &fault, &place.clock);
    assert_eq!(at_boot(&place, "boot"), (0, 61));
}

#[tokio::test]
async fn what_counts_no_more_is_removed() {
    let place = Place::new();
    let spent = place.open().spent;
    for _ in 0..2_000 {
        let id = begin(&spent, KEY).await;
        spent.end(id);
        after(&place, 1);
    }
    let files = ["spent.db", "spent.db-wal"].map(|name| place.path().join(name));
    let bytes = files.map(|path| fs::metadata(path).unwrap().len());
    assert!(bytes.iter().sum::<u64>() < 4 << 20, "{bytes:?}");
    drop(spent);
    let rows = at_boot(&place, &boot_id()).0;
    assert!((60..500).contains(&rows), "{rows} rows");
}
