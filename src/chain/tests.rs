//! What stored answers are good for, as tips come and are lost.

use super::ledger::NO_EPOCH;
use super::*;
use crate::pages::Block;

const EVERY: u64 = 5;

fn chain() -> Chain {
    Chain::new(&Settings {
        times: FinalitySettings::default(),
        index_blocks: 100,
        hash_zeros: 8,
        look_ahead: LookAhead::default(),
        tips: vec![TipSource {
            name: "runes".into(),
            path: Some("/runes/v1/".into()),
            height: "block_height".into(),
            every: Duration::from_secs(EVERY),
            upstream: 0,
            upstream_name: "default".into(),
        }],
    })
}

fn at(seconds: u64) -> Moment {
    Moment::from_nanos((100_000 + seconds) * 1_000_000_000)
}

fn tag(height: u32) -> String {
    format!("{height:064x}")
}

/// The status path says a tip.
fn probe(chain: &Chain, height: u32, now: u64) {
    let start = chain.start(0).unwrap();
    let tag = tag(height);
    chain.status(
        0,
        start,
        at(now),
        Some(height),
        Some(tag.as_bytes()),
        at(now),
    );
}

fn judge(chain: &Chain, standing: &ChainStamp, received: u64, now: u64) -> String {
    let lifetime = chain.times().lifetime(standing.class);
    match chain.judge(standing, at(received), lifetime, at(now)) {
        Freshness::Fresh { ttl } => format!("fresh {}", ttl.as_secs()),
        Freshness::Revalidated { .. } => "settled".to_owned(),
        Freshness::Stale { by } => format!("stale {}", by.as_secs()),
    }
}

#[test]
fn freshness_by_class_and_epoch() {
    let chain = chain();
    probe(&chain, 100, 0);
    let standing = |class| ChainStamp::new(class, 0, Some((97, 97)), 1);
    let (last, recent) = (standing(Class::Final), standing(Class::Recent));
    let (live, absent) = (standing(Class::Live), standing(Class::Absent));
    // Until the next probe tells more.
    assert_eq!(judge(&chain, &recent, 0, 1), "fresh 4");
    assert_eq!(judge(&chain, &live, 0, 1), "fresh 4");
    assert_eq!(judge(&chain, &recent, 3, 3), "fresh 5", "it came since");
    assert_eq!(judge(&chain, &absent, 0, 0), "fresh 1");
    assert_eq!(judge(&chain, &absent, 0, 1), "stale 0");
    for probes in 1..=10 {
        probe(&chain, 100, probes * 5);
    }
    assert_eq!(judge(&chain, &recent, 0, 50), "fresh 5", "the epoch lasts");
    assert_eq!(judge(&chain, &live, 0, 29), "fresh 1");
    assert_eq!(judge(&chain, &live, 0, 50), "stale 20", "bound in time");
    probe(&chain, 101, 55);
    assert_eq!(judge(&chain, &recent, 0, 57), "stale 2");
    assert_eq!(judge(&chain, &live, 40, 57), "stale 2");
    assert_eq!(judge(&chain, &absent, 54, 57), "stale 2");
    assert_eq!(judge(&chain, &last, 0, 57), "fresh 2591943");
    assert_eq!(judge(&chain, &last, 0, 2_592_007), "stale 7");
}

#[test]
fn without_a_tip_times_count() {
    let chain = chain();
    let early = ChainStamp::new(Class::Recent, 0, Some((97, 97)), NO_EPOCH);
    let live = ChainStamp::new(Class::Live, 0, None, NO_EPOCH);
    assert_eq!(judge(&chain, &early, 0, 9), "fresh 1", "never known");
    assert_eq!(judge(&chain, &early, 0, 10), "stale 0");
    assert_eq!(judge(&chain, &live, 15, 19), "fresh 6");
    assert_eq!(
        chain.promise(Class::Recent, 0, at(0)),
        Duration::from_secs(10)
    );
    probe(&chain, 100, 20);
    // What came before it has no tip to be of.
    assert_eq!(judge(&chain, &early, 15, 20), "stale 0");
    assert_eq!(judge(&chain, &live, 15, 26), "stale 1", "its time counted");
    let recent = ChainStamp::new(Class::Recent, 0, Some((97, 97)), 1);
    assert_eq!(
        chain.promise(Class::Recent, 0, at(20)),
        Duration::from_secs(5)
    );
    assert_eq!(
        chain.promise(Class::Absent, 0, at(20)),
        Duration::from_secs(1)
    );
    // One probe may fail, two may not.
    assert_eq!(judge(&chain, &recent, 0, 24), "fresh 1");
    assert_eq!(judge(&chain, &recent, 0, 30), "fresh 0", "a probe is due");
    assert_eq!(judge(&chain, &recent, 0, 31), "stale 1", "lost 10 s after");
    assert_eq!(
        judge(&chain, &recent, 25, 31),
        "fresh 4",
        "times count again"
    );
    assert_eq!(judge(&chain, &recent, 25, 36), "stale 1");
    probe(&chain, 100, 40);
    assert_eq!(
        judge(&chain, &recent, 0, 40),
        "fresh 5",
        "nothing has changed"
    );
}

#[test]
fn what_was_lost_before_an_epoch_ended_is_as_old_as_that() {
    let chain = chain();
    probe(&chain, 100, 0);
    let recent = ChainStamp::new(Class::Recent, 0, Some((97, 97)), 1);
    // Nothing is heard of the tip for a minute; then it is another.
    assert_eq!(judge(&chain, &recent, 0, 59), "stale 49");
    probe(&chain, 101, 60);
    assert_eq!(judge(&chain, &recent, 0, 61), "stale 51");
    assert_eq!(judge(&chain, &recent, 45, 61), "stale 6", "by its time");
}

#[test]
fn a_link_makes_recent_answers_fresh_again_and_deep_ones_final() {
    let chain = chain();
    probe(&chain, 100, 0);
    let see = |height: u32, tip: u32| {
        let mut hash = [0; 32];
        hash[28..].copy_from_slice(&height.to_be_bytes());
        let tag = tag(tip);
        let facts = Facts {
            blocks: &[Block { height, hash }],
            empty: None,
            tag: Some(tag.as_bytes()),
        };
        chain.answer(0, chain.start(0).unwrap(), at(1), facts, at(1))
    };
    see(99, 100);
    let recent = ChainStamp::new(Class::Recent, 0, Some((96, 98)), 1);
    let live = ChainStamp::new(Class::Live, 0, None, 1);
    probe(&chain, 100, 1);
    probe(&chain, 101, 2);
    assert_eq!(judge(&chain, &recent, 0, 3), "stale 1");
    see(99, 101);
    assert_eq!(judge(&chain, &recent, 0, 3), "fresh 4");
    assert_eq!(recent.epoch(), 2, "so that it need not be looked for again");
    assert_eq!(judge(&chain, &live, 0, 3), "stale 1", "that is no block");
    probe(&chain, 101, 4);
    probe(&chain, 104, 4);
    see(99, 104);
    assert_eq!(judge(&chain, &recent, 0, 4), "settled");
}

#[test]
fn an_age_and_what_is_promised_make_what_is_left() {
    let seconds = Duration::from_secs;
    let standing = |class| ChainStamp::new(class, 0, None, 1).promising(seconds(5));
    for (class, ttl, since, age) in [
        (Class::Recent, 5, 600, 0),
        (Class::Recent, 2, 600, 3),
        (Class::Recent, 0, 600, 5),
        // Where the tip was not known, it may be left longer than promised.
        (Class::Recent, 9, 1, 0),
        // An equal tip proves nothing of what any block may change.
        (Class::Live, 2, 2, 2),
        (Class::Live, 5, 20, 20),
        (Class::Live, 9, 1, 1),
        (Class::Absent, 1, 3, 3),
        // What is final is as old as it is.
        (Class::Final, 2, 600, 600),
    ] {
        let told = standing(class).age(at(0), seconds(ttl), at(since));
        assert_eq!(told, seconds(age), "{class:?} {ttl} after {since} s");
    }
}

#[test]
fn a_stale_answer_is_as_old_as_what_last_showed_it_unchanged() {
    let chain = chain();
    probe(&chain, 100, 1);
    let standing = |class| ChainStamp::new(class, 0, Some((96, 98)), chain.epoch(0));
    let (recent, live) = (standing(Class::Recent), standing(Class::Live));
    let age = |standing: &ChainStamp, now| {
        let stale = Freshness::Stale {
            by: Duration::from_secs(3),
        };
        chain.age(standing, at(2), stale, at(now)).as_secs()
    };
    assert_eq!((age(&recent, 33), age(&live, 33)), (31, 31));
    probe(&chain, 100, 30);
    assert_eq!((age(&recent, 33), age(&live, 33)), (3, 31));
    // When it was last looked at in an epoch that has ended is not known.
    probe(&chain, 101, 32);
    assert_eq!((age(&recent, 33), age(&live, 33)), (31, 31));
}

#[test]
fn heat_fades() {
    let standing = ChainStamp::new(Class::Live, 0, None, 1);
    standing.warm(8);
    standing.warm(1);
    assert_eq!(
        [standing.cool(), standing.cool(), standing.cool()],
        [9, 4, 2]
    );
}

#[test]
fn live_answers_are_fresh_for_as_long_as_checks_find_no_change() {
    let chain = chain();
    let live = |epoch| ChainStamp::new(Class::Live, 0, None, epoch);
    let checked = |standing: &ChainStamp, received, sent, same| {
        let since = chain.checked(standing, at(received), at(sent), same, at(sent));
        since.map(|since| since.millis() / 1000 - 100_000)
    };
    let may = |standing: &ChainStamp, received, now| {
        let ttl = chain.times().live_ttl;
        let known = chain.may_be_checked(standing, at(received), ttl, at(now));
        known.map(|known| known.millis() / 1000 - 100_000)
    };
    // The first tip is no new one, so that nothing is half written.
    probe(&chain, 100, 0);
    let one = live(1);
    probe(&chain, 100, 40);
    assert_eq!(judge(&chain, &one, 10, 40), "stale 0");
    assert_eq!((may(&one, 10, 39), may(&one, 10, 40)), (None, Some(10)));
    assert_eq!(checked(&one, 5, 36, true), Some(5));
    assert_eq!(
        judge(&chain, &one, 10, 40),
        "fresh 5",
        "up to the next probe"
    );
    assert_eq!(judge(&chain, &one, 4, 40), "stale 6", "of before");
    probe(&chain, 100, 70);
    assert_eq!(judge(&chain, &one, 10, 65), "fresh 1");
    assert_eq!(judge(&chain, &one, 10, 66), "stale 0");
    assert_eq!(may(&one, 10, 66), Some(36));
    // Twenty times its own time is the most.
    for check in 3..=20 {
        probe(&chain, 100, check * 30);
        assert_eq!(
            checked(&one, check * 30 - 30, check * 30, true),
            Some(check * 30 - 30)
        );
    }
    probe(&chain, 100, 615);
    assert_eq!(judge(&chain, &one, 10, 609), "stale 569", "a gap");
    assert_eq!(judge(&chain, &one, 60, 615), "fresh 5");
    for check in 21..=22 {
        assert_eq!(
            checked(&one, check * 30 - 30, check * 30, true),
            Some(check * 30 - 30)
        );
    }
    probe(&chain, 100, 660);
    assert_eq!(judge(&chain, &one, 60, 659), "fresh 1");
    assert_eq!(judge(&chain, &one, 60, 661), "stale 1");
    assert_eq!((may(&one, 60, 659), may(&one, 60, 660)), (None, None));
    // What has changed without a new tip may be half written.
    assert_eq!(checked(&one, 640, 690, false), None);
    probe(&chain, 100, 690);
    assert_eq!(judge(&chain, &one, 660, 690), "stale 0");
    assert_eq!(may(&one, 660, 690), None);
    assert_eq!(judge(&chain, &one, 661, 690), "fresh 1");
    assert_eq!(checked(&one, 691, 715, true), None);
    assert_eq!(checked(&one, 720, 750, true), Some(720));
    // And so may be what comes soon after a new tip.
    probe(&chain, 100, 755);
    probe(&chain, 101, 760);
    let two = live(2);
    assert_eq!(
        judge(&chain, &one, 721, 761),
        "stale 1",
        "its epoch is over"
    );
    assert_eq!(checked(&one, 721, 762, true), None);
    assert_eq!(checked(&two, 762, 792, true), None);
    probe(&chain, 101, 792);
    assert_eq!(judge(&chain, &two, 762, 792), "stale 0");
    assert_eq!(checked(&two, 790, 820, true), Some(790));
    probe(&chain, 101, 822);
    assert_eq!(judge(&chain, &two, 791, 822), "fresh 5");
    // Where the tip is lost, time counts.
    assert_eq!(judge(&chain, &two, 791, 833), "stale 1");
    assert_eq!(may(&two, 791, 851), None);
    assert_eq!(judge(&chain, &two, 830, 833), "fresh 7");
}
