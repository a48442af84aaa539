//! What is stored, found and purged, over restarts and kills.

use std::fs;

use super::*;
use crate::chain::Class;
use crate::state::State;
use crate::state::tests::Place;

mod damage;

fn key(target: &str) -> RowKey {
    RowKey {
        route: "blocks".into(),
        config: "c1".into(),
        target: target.to_owned(),
    }
}

/// An empty directory, and what is stored there.
fn opened() -> (Place, Answers) {
    let place = Place::new();
    let answers = place.open().answers;
    (place, answers)
}

impl Place {
    fn now(&self) -> u64 {
        let wall = self.clock.wall_now();
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
                status: 200,
                content_type: b"application/json".to_vec(),
                received: self.now(),
                run: 1,
                lifetime: Duration::from_secs(10),
                is_encodable: true,
                class: Some(Class::Final),
                heights: Some((height, height)),
                body: format!("{target} {height}").into(),
            },
        }
    }
}

/// A row whose body cannot be compressed.
fn random_row(place: &Place, n: u32, length: usize) -> Row {
    let target = format!("/{n}");
    let mut random = fastrand::Rng::with_seed(n.into());
    let random = std::iter::repeat_with(|| random.u8(..));
    let body = target.bytes().chain(random);
    let mut row = place.row(&target, n);
    row.value.body = body.take(length).collect();
    row
}

fn route(name: &str) -> PurgeRows {
    PurgeRows::below(name.to_owned(), String::new())
}

fn heights(tip: Option<&str>, from: u32, to: u32) -> PurgeRows {
    let tip = tip.map(Into::into);
    PurgeRows::Heights { tip, from, to }
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
    let (place, answers) = opened();
    let row = place.row("/a", 5);
    answers.put(row.clone());
    assert_eq!(answers.look_up(key("/a")).await.as_ref(), Some(&row.value));
    let mut anew = row.clone();
    anew.value.body = "/a anew".into();
    answers.put(anew);
    drop(answers);
    let answers = place.open().answers;
    assert_eq!(answers.look_up(key("/a")).await.unwrap().body, "/a anew");
    assert_eq!(answers.look_up(key("/b")).await, None);
    let snapshot = answers.snapshot().unwrap();
    let counts = [snapshot.hits, snapshot.misses, snapshot.dropped];
    assert_eq!(counts, [1, 1, 0]);
    assert!(snapshot.bytes > 0 && snapshot.bytes < snapshot.max_bytes);
}

#[tokio::test]
async fn what_is_of_no_use_is_not_found() {
    let (place, answers) = opened();
    answers.put(place.row("/a", 5));
    let other = async |route: &str, config: &str| {
        let mut key = key("/a");
        (key.route, key.config) = (route.into(), config.into());
        answers.look_up(key).await
    };
    assert_eq!(other("tx", "c1").await, None);
    place.clock.advance(Duration::from_millis(9_999));
    assert_eq!(found(&answers, &["/a"]).await, "/a");
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(found(&answers, &["/a"]).await, "", "it has expired");
    answers.put(place.row("/a", 5));
    assert_eq!(other("blocks", "c2").await, None);
    assert_eq!(found(&answers, &["/a"]).await, "/a");
    // The clock has gone back.
    let mut later = place.row("/b", 5);
    later.value.received += 1;
    answers.put(later);
    assert_eq!(found(&answers, &["/b"]).await, "");
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(found(&answers, &["/b"]).await, "/b");
}

#[tokio::test]
async fn a_purge_removes_what_it_names() {
    const ALL: [&str; 4] = ["/a/1", "/a/1?x=2", "/a/2", "/b"];
    const WHOLE: &str = "/a/1 /a/1?x=2 /a/2 /b";
    let target = |route: &str| PurgeRows::Targets {
        route: route.to_owned(),
        range: "/a/1".to_owned()..="/a/1".to_owned(),
    };
    let prefix = |route: &str| PurgeRows::below(route.to_owned(), "/a/1".to_owned());
    let two = vec![heights(None, 0, 1), heights(None, 4, 4)];
    for (rows, left) in [
        (vec![], WHOLE),
        (vec![PurgeRows::All], ""),
        (vec![route("blocks")], ""),
        (vec![route("tx")], WHOLE),
        (vec![target("blocks")], "/a/1?x=2 /a/2 /b"),
        (vec![target("tx")], WHOLE),
        (vec![prefix("blocks")], "/a/2 /b"),
        (vec![prefix("tx")], WHOLE),
        (vec![heights(Some("t"), 2, 3)], "/a/1 /b"),
        (vec![heights(Some("t"), 3, u32::MAX)], "/a/1 /a/1?x=2"),
        (vec![heights(Some("t"), 5, 9)], WHOLE),
        (vec![heights(Some("u"), 0, 9)], WHOLE),
        (two, "/a/1?x=2 /a/2"),
    ] {
        let (place, answers) = opened();
        for (height, target) in (1..).zip(ALL) {
            answers.put(place.row(target, height));
        }
        assert_eq!(answers.purge(rows.clone(), 1).await.ok(), Some(()));
        assert_eq!(found(&answers, &ALL).await, left, "{rows:?}");
        // A process that is killed now has purged it, whatever becomes of the log.
        let killed = place.as_killed();
        let log = fs::metadata(killed.path().join("answers.db-wal"));
        assert_eq!(log.unwrap().len(), 0);
        let answers = killed.open().answers;
        assert_eq!(found(&answers, &ALL).await, left, "{rows:?} and a kill");
    }
}

#[tokio::test]
async fn known_blocks_and_the_generation_come_back() {
    let (place, answers) = opened();
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
    let known = [block(5), (6, [0; 32]), block(7)];
    assert_eq!(answers.blocks(&one).await, known);
    let purged = answers.purge(vec![heights(Some("t"), 6, u32::MAX)], 1);
    purged.await.unwrap();
    assert_eq!(answers.blocks(&one).await, [block(5)]);
    assert_eq!(answers.blocks(&other).await, [block(9)]);
    answers.put_blocks(&one, vec![block(8)], 0);
    // It was known before the purge.
    assert_eq!(answers.blocks(&one).await, [block(5)]);
    answers.put_blocks(&one, (10..66_000).map(block).collect(), 1);
    answers.put_blocks(&one, vec![block(66_000)], 1);
    // The highest stay.
    let known = answers.blocks(&one).await;
    assert_eq!((known.len(), known[0].0), (1024, 66_001 - 1024));
}

#[tokio::test]
async fn a_purge_overtakes_what_is_to_be_stored() {
    let (place, answers) = opened();
    let put = |target, purge| {
        let row = place.row(target, 1);
        answers.put(Row { purge, ..row });
    };
    put("/before", 3);
    let purge = answers.purge(vec![route("tx")], 4);
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
    let (place, answers) = opened();
    for n in 0..1_000 {
        answers.put(random_row(&place, n, 3_000 + n as usize));
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
    answers.put(random_row(&place, 1_000, 1 << 17));
    assert_eq!(found(&answers, &["/1000"]).await, "", "it is too large");
    let snapshot = answers.snapshot().unwrap();
    assert_eq!((snapshot.dropped, snapshot.fault), (1, None));
    // A purge of most of it does not exceed the bound either.
    let purged = answers.purge(vec![heights(None, 0, 990)], 1);
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
    for n in 0..40 {
        answers.put(random_row(&place, n, 50_000));
    }
    drop(answers);
    let answers = place.open().answers;
    assert_eq!(found(&answers, &["/39"]).await, "");
    assert!(bytes(&place) <= 1 << 20);
}

/// Answers whose thread does not run, and what it would be given.
fn stuck() -> (Place, Answers, mpsc::Receiver<Job>) {
    let place = Place::new();
    let (jobs, received) = mpsc::channel();
    let handle = Handle {
        jobs,
        shown: Arc::default(),
        room: Arc::new(Semaphore::new(MOST_BYTES)),
        clock: place.clock.clone(),
        path: place.path().join("answers.db"),
    };
    (place, Answers(Some(Arc::new(handle))), received)
}

#[tokio::test(start_paused = true)]
async fn a_slow_disk_is_a_miss() {
    let (place, answers, received) = stuck();
    let began = tokio::time::Instant::now();
    assert_eq!(answers.look_up(key("/a")).await, None);
    assert_eq!(began.elapsed(), LOOK_UP);
    let most = MOST_BYTES / LEAST_BYTES;
    for _ in 1..most {
        answers.put(place.row("/a", 1));
    }
    assert_eq!(answers.snapshot().unwrap().dropped, 0);
    answers.put(place.row("/a", 1));
    assert_eq!(answers.snapshot().unwrap().dropped, 1, "the queue is full");
    // Nobody waits for a full queue.
    assert_eq!(answers.look_up(key("/a")).await, None);
    assert_eq!(began.elapsed(), LOOK_UP);
    assert_eq!(received.try_iter().count(), most);
    // Large bodies fill the queue sooner.
    let mut row = place.row("/a", 1);
    row.value.body = vec![0; 6 << 20].into();
    for dropped in [1, 1, 2, 3] {
        answers.put(row.clone());
        assert_eq!(answers.snapshot().unwrap().dropped, dropped);
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_is_not_done_is_an_error() {
    let (place, answers, received) = stuck();
    let path = place.path().join("answers.db").display().to_string();
    let refused = answers.purge(vec![PurgeRows::All], 1).await.unwrap_err();
    let why = "the purge is not on disk: a purge was not done within ten seconds";
    let expected = format!("{why}; stop ordgate and delete {path}");
    assert_eq!(refused.to_string(), expected);
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
        let route = || vec![route("blocks")];
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
    assert_eq!(found(&answers, &["/a"]).await, "/a");
}
