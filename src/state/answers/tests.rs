//! What is stored, found and purged, over restarts and kills.

use std::fs::{self, OpenOptions};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::*;
use crate::state::State;
use crate::state::tests::Place;
use crate::state::value::KeptSubject;

mod damage;

fn key(target: &str) -> RowKey {
    RowKey {
        route: "blocks".into(),
        config: "c1".into(),
        target: target.to_owned(),
    }
}

impl Place {
    fn now(&self) -> u64 {
        let wall = self.clock.wall(self.clock.now());
        wall.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
    }

    /// A row for a target, which names this block; its body begins with the target.
    fn row(&self, target: &str, height: u32) -> Row {
        Row {
            key: key(target),
            tip: Some("t".into()),
            expires: self.now() + 10_000,
            purge: 0,
            value: Value {
                status: StatusCode::OK,
                content_type: HeaderValue::from_static("application/json"),
                etag: HeaderValue::from_static("\"e\""),
                received: self.now(),
                run: 1,
                lifetime: Duration::from_secs(10),
                took: Duration::ZERO,
                max_age: None,
                is_immutable: false,
                is_encodable: true,
                subject: Some(KeptSubject::Blocks),
                heights: Some((height, height)),
                body: format!("{target} {height}").into(),
            },
        }
    }
}

/// The targets that are found, of these.
async fn found(answers: &Answers, targets: &[&str]) -> String {
    let mut found = Vec::new();
    for target in targets {
        if let Some(value) = answers.look_up(key(target)).await {
            assert!(value.body.starts_with(target.as_bytes()));
            found.push(*target);
        }
    }
    found.join(" ")
}

#[tokio::test]
async fn what_is_stored_is_found_after_a_restart() {
    let place = Place::new();
    let answers = place.open().answers;
    let row = place.row("/a", 5);
    answers.put(row.clone());
    assert_eq!(answers.look_up(key("/a")).await.as_ref(), Some(&row.value));
    answers.put(Row {
        value: Value {
            body: "/a anew".into(),
            ..row.value.clone()
        },
        ..row.clone()
    });
    drop(answers);
    let answers = place.open().answers;
    assert_eq!(answers.look_up(key("/a")).await.unwrap().body, "/a anew");
    assert_eq!(answers.look_up(key("/b")).await, None);
    let snapshot = answers.snapshot().unwrap();
    assert_eq!(
        (snapshot.hits, snapshot.misses, snapshot.dropped),
        (1, 1, 0)
    );
    assert!(snapshot.bytes > 0 && snapshot.bytes < snapshot.max_bytes);
}

#[tokio::test]
async fn what_is_of_no_use_is_not_found() {
    let place = Place::new();
    let answers = place.open().answers;
    answers.put(place.row("/a", 5));
    let other = |route: &str, config: &str| RowKey {
        route: route.into(),
        config: config.into(),
        ..key("/a")
    };
    assert_eq!(
        answers.look_up(other("tx", "c1")).await,
        None,
        "another route"
    );
    place.clock.advance(Duration::from_millis(9_999));
    assert_eq!(found(&answers, &["/a"]).await, "/a");
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(found(&answers, &["/a"]).await, "", "it has expired");
    answers.put(place.row("/a", 5));
    assert_eq!(
        answers.look_up(other("blocks", "c2")).await,
        None,
        "other configuration"
    );
    assert_eq!(found(&answers, &["/a"]).await, "", "it is gone");
    let mut later = place.row("/b", 5);
    later.value.received += 1;
    answers.put(later);
    assert_eq!(
        found(&answers, &["/b"]).await,
        "",
        "the clock has gone back"
    );
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(found(&answers, &["/b"]).await, "/b");
}

#[tokio::test]
async fn a_purge_removes_what_it_names() {
    const ALL: [&str; 4] = ["/a/1", "/a/1?x=2", "/a/2", "/b"];
    let text = str::to_owned;
    let heights = |tip: Option<&str>, from, to| PurgeRows::Heights {
        tip: tip.map(Into::into),
        from,
        to,
    };
    let (route, target) = (text("blocks"), text("/a/1"));
    let (prefix, other) = (target.clone(), text("tx"));
    for (rows, left) in [
        (vec![], "/a/1 /a/1?x=2 /a/2 /b"),
        (vec![PurgeRows::All], ""),
        (vec![PurgeRows::Route(route.clone())], ""),
        (
            vec![PurgeRows::Route(other.clone())],
            "/a/1 /a/1?x=2 /a/2 /b",
        ),
        (
            vec![PurgeRows::Target {
                route: route.clone(),
                target: target.clone(),
            }],
            "/a/1?x=2 /a/2 /b",
        ),
        (
            vec![PurgeRows::Target {
                route: other.clone(),
                target,
            }],
            "/a/1 /a/1?x=2 /a/2 /b",
        ),
        (
            vec![PurgeRows::Prefix {
                route,
                prefix: prefix.clone(),
            }],
            "/a/2 /b",
        ),
        (
            vec![PurgeRows::Prefix {
                route: other,
                prefix,
            }],
            "/a/1 /a/1?x=2 /a/2 /b",
        ),
        (vec![heights(Some("t"), 2, 3)], "/a/1 /b"),
        (vec![heights(Some("t"), 3, u32::MAX)], "/a/1 /a/1?x=2"),
        (vec![heights(Some("t"), 5, 9)], "/a/1 /a/1?x=2 /a/2 /b"),
        (vec![heights(Some("u"), 0, 9)], "/a/1 /a/1?x=2 /a/2 /b"),
        (
            vec![heights(None, 0, 1), heights(None, 4, 4)],
            "/a/1?x=2 /a/2",
        ),
    ] {
        let place = Place::new();
        let answers = place.open().answers;
        for (height, target) in (1..).zip(ALL) {
            answers.put(place.row(target, height));
        }
        assert_eq!(answers.purge(rows.clone(), 1).await.ok(), Some(()));
        assert_eq!(found(&answers, &ALL).await, left, "{rows:?}");
        // A process that is killed now has purged it, whatever becomes of the log.
        let killed = place.as_killed();
        assert_eq!(
            fs::metadata(killed.path().join("answers.db-wal"))
                .unwrap()
                .len(),
            0
        );
        let answers = killed.open().answers;
        assert_eq!(
            found(&answers, &ALL).await,
            left,
            "{rows:?} when it is killed"
        );
    }
}

#[tokio::test]
async fn known_blocks_and_the_generation_come_back() {
    let place = Place::new();
    let answers = place.open().answers;
    let (one, other) = (Arc::from("t"), Arc::from("u"));
    let block = |height: u32| (height, [height as u8; 32]);
    answers.put_blocks(&one, vec![block(7), block(5), block(6)], 0);
    answers.put_blocks(&other, vec![block(9)], 0);
    answers.put_blocks(&one, vec![(6, [0; 32])], 0);
    assert_eq!(answers.generation().await, None);
    answers.set_generation(1, 2);
    answers.set_generation(u64::MAX, 3);
    drop(answers);
    let answers = place.open().answers;
    assert_eq!(answers.generation().await, Some((u64::MAX, 3)));
    assert_eq!(
        answers.blocks(&one).await,
        [block(5), (6, [0; 32]), block(7)]
    );
    let (tip, from, to) = (Some(Arc::clone(&one)), 6, u32::MAX);
    let purged = answers.purge(vec![PurgeRows::Heights { tip, from, to }], 1);
    purged.await.unwrap();
    assert_eq!(answers.blocks(&one).await, [block(5)]);
    assert_eq!(answers.blocks(&other).await, [block(9)]);
    answers.put_blocks(&one, vec![block(8)], 0);
    assert_eq!(
        answers.blocks(&one).await,
        [block(5)],
        "known before the purge"
    );
    answers.put_blocks(&one, (10..66_000).map(block).collect(), 1);
    answers.put_blocks(&one, vec![block(66_000)], 1);
    let known = answers.blocks(&one).await;
    assert_eq!(
        (known.len(), known[0].0),
        (1024, 66_001 - 1024),
        "the highest"
    );
}

#[tokio::test]
async fn a_purge_overtakes_what_is_to_be_stored() {
    let place = Place::new();
    let answers = place.open().answers;
    let put = |target, purge| {
        answers.put(Row {
            purge,
            ..place.row(target, 1)
        })
    };
    put("/before", 3);
    let purge = answers.purge(vec![PurgeRows::Route("tx".to_owned())], 4);
    put("/late", 3);
    put("/after", 4);
    purge.await.unwrap();
    let all = ["/before", "/late", "/after"];
    assert_eq!(found(&answers, &all).await, "/before /after");
    assert_eq!(answers.snapshot().unwrap().dropped, 1);
}

/// The bytes of all files of the answers.
fn bytes(place: &Place) -> u64 {
    let files = fs::read_dir(place.path()).unwrap().map(Result::unwrap);
    let ours = files.filter(|file| file.file_name().to_string_lossy().starts_with("answers"));
    ours.map(|file| file.metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn the_bound_is_hard_and_the_oldest_go_first() {
    let place = Place::new();
    let answers = place.open().answers;
    let mut random = fastrand::Rng::with_seed(1);
    let mut row = |n: u32, length: usize| {
        let target = format!("/{n}");
        let random = std::iter::repeat_with(|| random.u8(..)).take(length);
        let body: Vec<u8> = target.bytes().chain(random).collect();
        let mut row = place.row(&target, n);
        row.value.body = Bytes::from(body);
        row
    };
    for n in 0..1_000 {
        answers.put(row(n, 3_000 + n as usize));
        if n % 10 == 0 {
            answers.blocks(&"t".into()).await;
            assert!(bytes(&place) <= 1 << 20, "{} at {n}", bytes(&place));
        }
    }
    let targets: Vec<_> = (0..1_000).map(|n| format!("/{n}")).collect();
    let targets: Vec<_> = targets.iter().map(|target| &**target).collect();
    let left = found(&answers, &targets).await;
    let left: Vec<_> = left.split(' ').collect();
    assert!(left.len() > 100, "{} are left", left.len());
    assert_eq!(left, targets[1_000 - left.len()..]);
    answers.put(row(1_000, 1 << 17));
    assert_eq!(found(&answers, &["/1000"]).await, "", "it is too large");
    let snapshot = answers.snapshot().unwrap();
    assert_eq!((snapshot.dropped, snapshot.fault), (1, None));
    // A purge of most of it does not exceed the bound either.
    let (tip, from, to) = (None, 0, 990);
    let purged = answers.purge(vec![PurgeRows::Heights { tip, from, to }], 1);
    purged.await.unwrap();
    assert!(bytes(&place) <= 1 << 20);
    assert_eq!(found(&answers, &targets).await.split(' ').count(), 9);
}

#[tokio::test]
async fn a_bound_that_became_smaller_begins_anew() {
    let place = Place::new();
    let mut settings = place.settings();
    settings.max_bytes = 4 << 20;
    let answers = State::open(&settings, &place.clock).unwrap().answers;
    let mut random = fastrand::Rng::with_seed(1);
    for n in 0..40 {
        let mut row = place.row("/a", n);
        row.key.target = format!("/{n}");
        row.value.body = std::iter::repeat_with(|| random.u8(..))
            .take(50_000)
            .collect();
        answers.put(row);
    }
    drop(answers);
    let answers = place.open().answers;
    assert_eq!(found(&answers, &["/39"]).await, "");
    assert!(bytes(&place) <= 1 << 20);
}

/// Answers whose thread does not run, and what it would be given.
fn stuck(place: &Place) -> (Answers, Receiver<Command>) {
    let (commands, received) = mpsc::channel();
    let handle = Handle {
        commands,
        counts: Arc::default(),
        clock: place.clock.clone(),
        path: place.path().join("answers.db"),
        max_bytes: 1,
    };
    (Answers(Some(Arc::new(handle))), received)
}

#[tokio::test(start_paused = true)]
async fn a_slow_disk_is_a_miss() {
    let place = Place::new();
    let (answers, received) = stuck(&place);
    let began = tokio::time::Instant::now();
    assert_eq!(answers.look_up(key("/a")).await, None);
    assert_eq!(began.elapsed(), LOOK_UP);
    for _ in 1..MOST_COMMANDS {
        answers.put(place.row("/a", 1));
    }
    assert_eq!(answers.snapshot().unwrap().dropped, 0);
    answers.put(place.row("/a", 1));
    assert_eq!(answers.snapshot().unwrap().dropped, 1, "the queue is full");
    let began = tokio::time::Instant::now();
    assert_eq!(answers.look_up(key("/a")).await, None);
    assert_eq!(
        began.elapsed(),
        Duration::ZERO,
        "it does not wait for a full queue"
    );
    assert_eq!(received.try_iter().count() as u64, MOST_COMMANDS);
}

#[tokio::test]
async fn large_bodies_do_not_fill_the_memory() {
    let place = Place::new();
    let (answers, _received) = stuck(&place);
    let mut row = place.row("/a", 1);
    row.value.body = vec![0; 6 << 20].into();
    for dropped in [0, 0, 1, 2] {
        answers.put(row.clone());
        assert_eq!(answers.snapshot().unwrap().dropped, dropped);
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_is_not_done_is_an_error() {
    let place = Place::new();
    let (answers, received) = stuck(&place);
    let path = place.path().join("answers.db").display().to_string();
    let refused = answers.purge(vec![PurgeRows::All], 1).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "the purge is not on disk: a purge was not done within ten seconds; stop ordgate and delete {path}"
        )
    );
    // What it should have purged is not found any more.
    assert!(answers.snapshot().unwrap().fault.is_some());
    assert_eq!(answers.look_up(key("/a")).await, None);
    assert_eq!(received.try_iter().count(), 1, "only the purge");
}

const NO_DELETE: &str = "CREATE TRIGGER no BEFORE DELETE ON answers
    BEGIN SELECT RAISE(ABORT, 'it cannot be deleted'); END";
const NO_INSERT: &str = "CREATE TRIGGER no BEFORE INSERT ON answers
    BEGIN SELECT RAISE(ABORT, 'it cannot be inserted'); END";

#[tokio::test]
async fn where_a_row_cannot_be_deleted_the_file_is_removed() {
    for can_remove in [true, false] {
        let place = Place::new();
        let path = place.path().join("answers.db");
        let answers = place.open().answers;
        answers.put(place.row("/a", 1));
        drop(answers);
        drop(place.open());
        place.change("answers.db", NO_DELETE);
        let answers = place.open().answers;
        assert_eq!(found(&answers, &["/a"]).await, "/a");
        if !can_remove {
            // A directory that is not empty cannot be removed as a file.
            fs::rename(&path, place.path().join("moved")).unwrap();
            fs::create_dir_all(path.join("x")).unwrap();
        }
        let route = || vec![PurgeRows::Route("blocks".to_owned())];
        let purged = answers.purge(route(), 1).await;
        assert_eq!(purged.is_ok(), can_remove, "{purged:?}");
        assert_eq!(path.exists(), !can_remove);
        assert_eq!(found(&answers, &["/a"]).await, "");
        let fault = answers.snapshot().unwrap().fault;
        assert_eq!(fault.as_deref(), Some("it cannot be deleted"));
        if !can_remove {
            assert!(answers.purge(route(), 2).await.is_err(), "it remains");
            fs::remove_dir_all(&path).unwrap();
        }
        assert!(answers.purge(route(), 3).await.is_ok(), "it is gone");
    }
}

#[tokio::test]
async fn after_an_error_it_goes_on_without() {
    let place = Place::new();
    drop(place.open());
    place.change("answers.db", NO_INSERT);
    let answers = place.open().answers;
    answers.put(place.row("/a", 1));
    assert_eq!(found(&answers, &["/a"]).await, "");
    let snapshot = answers.snapshot().unwrap();
    assert_eq!(snapshot.fault.as_deref(), Some("it cannot be inserted"));
    assert!(!place.path().join("answers.db").exists());
    assert!(answers.purge(vec![PurgeRows::All], 1).await.is_ok());
    assert!(answers.blocks(&"t".into()).await.is_empty());
    drop(answers);
    let answers = place.open().answers;
    answers.put(place.row("/a", 1));
    assert_eq!(
        found(&answers, &["/a"]).await,
        "/a",
        "the next process has it again"
    );
}

#[tokio::test]
async fn a_file_that_is_cut_while_it_is_used_is_begun_anew() {
    let place = Place::new();
    let answers = place.open().answers;
    answers.put(place.row("/a", 1));
    drop(answers);
    let answers = place.open().answers;
    let file = OpenOptions::new()
        .write(true)
        .open(place.path().join("answers.db"));
    file.unwrap().set_len(4096).unwrap();
    assert_eq!(found(&answers, &["/a"]).await, "");
    answers.put(place.row("/b", 1));
    assert_ne!(found(&answers, &["/b"]).await, "");
    assert_eq!(answers.snapshot().unwrap().fault, None);
}

#[tokio::test]
async fn without_a_directory_nothing_is_stored() {
    let place = Place::new();
    let answers = Answers::default();
    answers.put(place.row("/a", 1));
    assert_eq!(answers.look_up(key("/a")).await, None);
    assert!(answers.purge(vec![PurgeRows::All], 1).await.is_ok());
    assert!(!answers.is_on() && answers.snapshot().is_none());
}
