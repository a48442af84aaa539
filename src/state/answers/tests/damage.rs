//! Whatever is damaged, what is found is what was stored, and nothing that was purged.

use super::*;
use crate::state::answers::table::AnswersTable;
use crate::state::tests::UNUSABLE;

const KEPT: [&str; 3] = ["/kept/1", "/kept/2", "/kept/3"];

/// A database in which one route was purged, with some of its rows in the log.
async fn stored() -> Place {
    let (place, answers) = opened();
    let put = |target: &str, purge| {
        let mut row = place.row(target, 7);
        if target.starts_with("/purged") {
            row.key.route = "purged".into();
        }
        (row.expires, row.purge) = (u64::MAX >> 1, purge);
        answers.put(row);
    };
    for target in ["/purged/1", KEPT[0], "/purged/2", KEPT[1]] {
        put(target, 0);
    }
    let purge = vec![route("purged")];
    answers.purge(purge, 1).await.unwrap();
    put(KEPT[2], 1);
    assert_eq!(found(&answers, &[KEPT[2]]).await, KEPT[2]);
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
        if let Ok(Some(value)) = table.look_up(&key(target), now) {
            assert_eq!(value.body, format!("{target} 7"));
            found += 1;
        }
    }
    for target in ["/purged/1", "/purged/2"] {
        let mut purged = key(target);
        purged.route = "purged".into();
        assert!(!matches!(table.look_up(&purged, now), Ok(Some(_))));
    }
    found
}

#[tokio::test]
async fn any_byte_may_be_damaged() {
    let place = stored().await;
    assert_eq!(look(&place.as_killed()), 3);
    for (name, stride) in [("answers.db", 37), ("answers.db-wal", 61)] {
        let content = fs::read(place.path().join(name)).unwrap();
        let check = |changed: &[u8]| {
            let copy = place.as_killed();
            fs::write(copy.path().join(name), changed).unwrap();
            look(&copy);
        };
        for at in (0..content.len()).step_by(stride) {
            let mut changed = content.clone();
            changed[at] ^= 0x41;
            check(&changed);
        }
        for at in (0..content.len()).step_by(509) {
            check(&content[..at]);
        }
    }
}

const CHANGES: &str = "value = value || x'00'; value = CAST(value AS TEXT); tip = 'u'; \
    tip = NULL; lo = 6; hi = 8; hi = NULL; expires = expires - 1; config = 'c2'; \
    target = '/kept/9'";

#[tokio::test]
async fn a_row_whose_crc_is_another_one_is_not_found() {
    let place = stored().await;
    place.change("answers.db", "BEGIN IMMEDIATE; COMMIT");
    for change in CHANGES.split("; ") {
        let copy = place.as_killed();
        let sql = format!("UPDATE answers SET {change} WHERE target = '{}'", KEPT[1]);
        copy.change("answers.db", &sql);
        assert_eq!(look(&copy), 2, "{change}");
    }
    // One row in place of another.
    let sql = "DELETE FROM answers WHERE target = '/kept/1';
        UPDATE answers SET target = '/kept/1' WHERE target = '/kept/2'";
    place.change("answers.db", sql);
    assert_eq!(look(&place), 1);
}

#[tokio::test]
async fn what_is_no_database_of_this_version_is_begun_anew() {
    for how in [&UNUSABLE[..], &["DROP TABLE answers"]].concat() {
        let place = stored().await;
        drop(place.open());
        place.spoil("answers.db", how);
        let answers = place.open().answers;
        assert_eq!(found(&answers, &KEPT).await, "", "{how}");
        // What is missing is found when it is used.
        if how != "DROP TABLE answers" {
            answers.put(place.row("/a", 1));
            assert_eq!(found(&answers, &["/a"]).await, "/a", "{how}");
        }
    }
}

#[tokio::test]
async fn a_damaged_block_is_not_known() {
    for change in ["hash = zeroblob(32)", "height = height + 1", "tip = 'u'"] {
        let (place, answers) = opened();
        answers.put_blocks(&"t".into(), vec![(7, [1; 32]), (8, [2; 32])], 0);
        answers.set_generation(1, 2);
        drop(answers);
        drop(place.open());
        let damage = format!("UPDATE blocks SET {change} WHERE height = 8;");
        let damage = damage + "UPDATE replicas SET generation = 3";
        place.change("answers.db", &damage);
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
async fn a_file_that_is_cut_while_it_is_used_is_begun_anew() {
    let place = stored().await;
    drop(place.open());
    let answers = place.open().answers;
    let mut file = File::options();
    let file = file.write(true).open(place.path().join("answers.db"));
    file.unwrap().set_len(4096).unwrap();
    assert_eq!(found(&answers, &KEPT).await, "");
    answers.put(place.row("/a", 1));
    assert_eq!(found(&answers, &["/a"]).await, "/a");
    assert_eq!(answers.snapshot().unwrap().fault, None);
}
