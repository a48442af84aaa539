//! Whatever is damaged, what is found is what was stored, and nothing that was purged.

use super::*;
use crate::state::answers::table::AnswersTable;

const KEPT: [&str; 3] = ["/kept/1", "/kept/2", "/kept/3"];

/// A database in which one route was purged, with some of its rows in the log.
async fn stored() -> Place {
    let place = Place::new();
    let answers = place.open().answers;
    for target in ["/purged/1", KEPT[0], "/purged/2", KEPT[1]] {
        let mut row = place.row(target, 7);
        if target.starts_with("/purged") {
            row.key.route = "purged".into();
        }
        row.expires = u64::MAX >> 1;
        answers.put(row);
    }
    let purge = vec![PurgeRows::Route("purged".to_owned())];
    answers.purge(purge, 1).await.unwrap();
    let mut row = place.row(KEPT[2], 7);
    (row.expires, row.purge) = (u64::MAX >> 1, 1);
    answers.put(row);
    assert!(answers.look_up(key(KEPT[2])).await.is_some());
    place.as_killed()
}

/// Opens it and looks everything up; returns how many of the rows are found.
fn look(place: &Place) -> usize {
    let path = place.path().join("answers.db");
    let mut table = AnswersTable::open(&path, 1 << 20).unwrap();
    let now = place.now() + 1;
    let mut found = 0;
    for target in KEPT {
        // An error is a miss, and ends the use of the database.
        let Ok(value) = table.look_up(&key(target), now) else {
            continue;
        };
        if let Some(value) = value {
            assert_eq!(value.body, format!("{target} 7"));
            found += 1;
        }
    }
    for target in ["/purged/1", "/purged/2"] {
        let purged = RowKey {
            route: "purged".into(),
            ..key(target)
        };
        assert!(!matches!(table.look_up(&purged, now), Ok(Some(_))));
    }
    found
}

/// Each change that one file of a copy has, and what is found then.
fn each_change(place: &Place, name: &str, change: impl Fn(&mut Vec<u8>, usize), stride: usize) {
    let content = fs::read(place.path().join(name)).unwrap();
    for at in (0..content.len()).step_by(stride) {
        let copy = place.as_killed();
        let mut changed = content.clone();
        change(&mut changed, at);
        fs::write(copy.path().join(name), changed).unwrap();
        look(&copy);
    }
}

#[tokio::test]
async fn any_byte_may_be_damaged() {
    let place = stored().await;
    assert_eq!(look(&place.as_killed()), 3);
    for (name, stride) in [("answers.db", 37), ("answers.db-wal", 61)] {
        each_change(&place, name, |bytes, at| bytes[at] ^= 0x41, stride);
        each_change(&place, name, Vec::truncate, 509);
    }
}

#[tokio::test]
async fn a_row_whose_crc_is_another_one_is_deleted() {
    let place = stored().await;
    drop(AnswersTable::open(
        &place.path().join("answers.db"),
        1 << 20,
    ));
    for change in [
        "value = value || x'00'",
        "value = CAST(value AS TEXT)",
        "tip = 'u'",
        "tip = NULL",
        "lo = 6",
        "hi = 8",
        "hi = NULL",
        "received = received - 1",
        "expires = expires - 1",
        "crc = crc + 1",
        "config = 'c2'",
        "target = '/kept/9'",
    ] {
        let copy = place.as_killed();
        let sql = format!("UPDATE answers SET {change} WHERE target = '{}'", KEPT[1]);
        copy.change("answers.db", &sql);
        assert_eq!(look(&copy), 2, "{change}");
        let database = rusqlite::Connection::open(copy.path().join("answers.db")).unwrap();
        let count = "SELECT COUNT(*) FROM answers WHERE target = '/kept/2'";
        let left: u32 = database.query_row(count, [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0, "{change}");
    }
    // One row in place of another.
    let copy = place.as_killed();
    copy.change(
        "answers.db",
        "DELETE FROM answers WHERE target = '/kept/1';
        UPDATE answers SET target = '/kept/1' WHERE target = '/kept/2'",
    );
    assert_eq!(look(&copy), 1);
}

#[tokio::test]
async fn what_is_no_database_of_this_version_is_begun_anew() {
    type Make = fn(&Place);
    let cases: [(&str, Make); 5] = [
        ("empty", |place| {
            fs::write(place.path().join("answers.db"), "").unwrap()
        }),
        ("a text", |place| {
            fs::write(place.path().join("answers.db"), "text".repeat(99)).unwrap()
        }),
        ("another program's", |place| {
            place.change("answers.db", "PRAGMA application_id = 1")
        }),
        ("another version", |place| {
            place.change("answers.db", "PRAGMA user_version = 2")
        }),
        ("without its tables", |place| {
            place.change("answers.db", "DROP TABLE answers")
        }),
    ];
    for (what, make) in cases {
        let place = stored().await;
        drop(AnswersTable::open(
            &place.path().join("answers.db"),
            1 << 20,
        ));
        make(&place);
        let answers = place.open().answers;
        assert_eq!(found(&answers, &KEPT).await, "", "{what}");
        if what != "without its tables" {
            answers.put(place.row("/a", 1));
            assert_eq!(found(&answers, &["/a"]).await, "/a", "{what}");
        }
    }
}

#[tokio::test]
async fn a_damaged_block_is_not_known() {
    for change in ["hash = zeroblob(32)", "height = height + 1", "tip = 'u'"] {
        let place = Place::new();
        let answers = place.open().answers;
        answers.put_blocks(&"t".into(), vec![(7, [1; 32]), (8, [2; 32])], 0);
        answers.set_generation(1, 2);
        drop(answers);
        drop(place.open());
        place.change(
            "answers.db",
            &format!(
                "UPDATE blocks SET {change} WHERE height = 8; UPDATE replicas SET generation = 3"
            ),
        );
        let answers = place.open().answers;
        let tip = if change.starts_with("tip") { "u" } else { "t" };
        assert_eq!(answers.generation().await, None);
        assert!(answers.blocks(&tip.into()).await.is_empty(), "{change}");
        // It is begun anew.
        answers.put_blocks(&"t".into(), vec![(9, [3; 32])], 0);
        assert_eq!(answers.blocks(&"t".into()).await, [(9, [3; 32])]);
        assert_eq!(answers.snapshot().unwrap().fault, None);
    }
}

#[tokio::test]
async fn a_damaged_database_is_begun_anew_while_it_is_used() {
    let place = stored().await;
    let path = place.path().join("answers.db");
    let mut content = fs::read(&path).unwrap();
    content.truncate(2 * 4096);
    fs::write(path, content).unwrap();
    fs::write(place.path().join("answers.db-wal"), "").unwrap();
    let answers = place.open().answers;
    let mut row = place.row("/new", 7);
    row.expires = u64::MAX >> 1;
    for _ in 0..3 {
        answers.put(row.clone());
        answers.look_up(key("/new")).await;
    }
    assert!(answers.look_up(key("/new")).await.is_some());
    assert_eq!(answers.snapshot().unwrap().fault, None);
}
