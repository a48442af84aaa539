//! Freshness and age of stored responses, as tips change and are lost.

use super::*;
use crate::chain::Settings;
use crate::chain::ledger::{NO_EPOCH, Observation};
use crate::pages::Block;

fn chain() -> Chain {
    Chain::new(&Settings::of_tests())
}

fn at(seconds: u64) -> Moment {
    Moment::from_nanos((100_000 + seconds) * 1_000_000_000)
}

fn tag(height: u32) -> String {
    format!("{height:064x}")
}

/// A probe reports a tip.
fn probe(chain: &Chain, height: u32, now: u64) {
    let start = chain.request_start(0).unwrap();
    let tag = tag(height);
    chain.apply_status(
        0,
        start,
        at(now),
        Some(height),
        Some(tag.as_bytes()),
        at(now),
    );
}

fn freshness(chain: &Chain, stamp: &ChainStamp, received: u64, now: u64) -> String {
    let lifetime = chain.finality().lifetime(stamp.class);
    match chain.freshness(stamp, at(received), lifetime, at(now)) {
        Freshness::Fresh { ttl } => format!("fresh {}", ttl.as_secs()),
        Freshness::BecameFinal { .. } => "final".to_owned(),
        Freshness::Stale { by } => format!("stale {}", by.as_secs()),
    }
}

#[test]
fn freshness_follows_class_and_epoch() {
    let chain = chain();
    probe(&chain, 100, 0);
    let stamp = |class| ChainStamp::new(class, 0, Some((97, 97)), 1);
    let (last, recent) = (stamp(Class::Final), stamp(Class::Recent));
    let (live, absent) = (stamp(Class::Live), stamp(Class::Absent));
    // Until the next probe.
    assert_eq!(freshness(&chain, &recent, 0, 1), "fresh 4");
    assert_eq!(freshness(&chain, &live, 0, 1), "fresh 4");
    assert_eq!(
        freshness(&chain, &recent, 3, 3),
        "fresh 5",
        "received since"
    );
    assert_eq!(freshness(&chain, &absent, 0, 0), "fresh 1");
    assert_eq!(freshness(&chain, &absent, 0, 1), "stale 0");
    for probes in 1..=10 {
        probe(&chain, 100, probes * 5);
    }
    assert_eq!(
        freshness(&chain, &recent, 0, 50),
        "fresh 5",
        "the epoch lasts"
    );
    assert_eq!(freshness(&chain, &live, 0, 29), "fresh 1");
    assert_eq!(freshness(&chain, &live, 0, 50), "stale 20", "live_ttl");
    probe(&chain, 101, 55);
    assert_eq!(freshness(&chain, &recent, 0, 57), "stale 2");
    assert_eq!(freshness(&chain, &live, 40, 57), "stale 2");
    assert_eq!(freshness(&chain, &absent, 54, 57), "stale 2");
    assert_eq!(freshness(&chain, &last, 0, 57), "fresh 2591943");
    assert_eq!(freshness(&chain, &last, 0, 2_592_007), "stale 7");
}

#[test]
fn without_a_tip_freshness_goes_by_time() {
    let chain = chain();
    let early = ChainStamp::new(Class::Recent, 0, Some((97, 97)), NO_EPOCH);
    let live = ChainStamp::new(Class::Live, 0, None, NO_EPOCH);
    assert_eq!(freshness(&chain, &early, 0, 9), "fresh 1", "never known");
    assert_eq!(freshness(&chain, &early, 0, 10), "stale 0");
    assert_eq!(freshness(&chain, &live, 15, 19), "fresh 6");
    assert_eq!(
        chain.client_lifetime(Class::Recent, 0, at(0)),
        Duration::from_secs(10)
    );
    probe(&chain, 100, 20);
    // It was received before the first tip.
    assert_eq!(freshness(&chain, &early, 15, 20), "stale 0");
    assert_eq!(freshness(&chain, &live, 15, 26), "stale 1", "by time");
    let recent = ChainStamp::new(Class::Recent, 0, Some((97, 97)), 1);
    assert_eq!(
        chain.client_lifetime(Class::Recent, 0, at(20)),
        Duration::from_secs(5)
    );
    assert_eq!(
        chain.client_lifetime(Class::Absent, 0, at(20)),
        Duration::from_secs(1)
    );
    // One probe may fail, two may not.
    assert_eq!(freshness(&chain, &recent, 0, 24), "fresh 1");
    assert_eq!(
        freshness(&chain, &recent, 0, 30),
        "fresh 0",
        "a probe is due"
    );
    assert_eq!(
        freshness(&chain, &recent, 0, 31),
        "stale 1",
        "lost 10 s after"
    );
    assert_eq!(
        freshness(&chain, &recent, 25, 31),
        "fresh 4",
        "by time again"
    );
    assert_eq!(freshness(&chain, &recent, 25, 36), "stale 1");
    probe(&chain, 100, 40);
    assert_eq!(
        freshness(&chain, &recent, 0, 40),
        "fresh 5",
        "nothing has changed"
    );
}

#[test]
fn staleness_counts_from_the_loss_of_the_tip() {
    let chain = chain();
    probe(&chain, 100, 0);
    let recent = ChainStamp::new(Class::Recent, 0, Some((97, 97)), 1);
    // No probe succeeds for a minute; then there is a new tip.
    assert_eq!(freshness(&chain, &recent, 0, 59), "stale 49");
    probe(&chain, 101, 60);
    assert_eq!(freshness(&chain, &recent, 0, 61), "stale 51");
    assert_eq!(freshness(&chain, &recent, 45, 61), "stale 6", "by time");
}

/// An answer with the tag of `tip` names the block at `height`.
fn see(chain: &Chain, height: u32, tip: u32) {
    let mut hash = [0; 32];
    hash[28..].copy_from_slice(&height.to_be_bytes());
    let tag = tag(tip);
    let observation = Observation {
        blocks: &[Block { height, hash }],
        empty_block: None,
        etag: Some(tag.as_bytes()),
    };
    let start = chain.request_start(0).unwrap();
    chain.apply_answer(0, start, at(1), observation, at(1));
}

#[test]
fn a_link_makes_recent_responses_fresh_and_deep_ones_final() {
    let chain = chain();
    probe(&chain, 100, 0);
    see(&chain, 99, 100);
    let recent = ChainStamp::new(Class::Recent, 0, Some((96, 98)), 1);
    let live = ChainStamp::new(Class::Live, 0, None, 1);
    probe(&chain, 100, 1);
    probe(&chain, 101, 2);
    assert_eq!(freshness(&chain, &recent, 0, 3), "stale 1");
    see(&chain, 99, 101);
    assert_eq!(freshness(&chain, &recent, 0, 3), "fresh 4");
    assert_eq!(
        recent.epoch(),
        2,
        "noted, so that the link is not searched again"
    );
    assert_eq!(
        freshness(&chain, &live, 0, 3),
        "stale 1",
        "any block may change it"
    );
    probe(&chain, 101, 4);
    probe(&chain, 104, 4);
    see(&chain, 99, 104);
    assert_eq!(freshness(&chain, &recent, 0, 4), "final");
}

#[test]
fn a_height_that_no_status_has_confirmed_makes_nothing_final() {
    let chain = chain();
    probe(&chain, 100, 0);
    see(&chain, 99, 100);
    let recent = ChainStamp::new(Class::Recent, 0, Some((96, 98)), 1);
    probe(&chain, 100, 1);
    // Far above: an answer alone does not say that the tip is there.
    see(&chain, 150, 150);
    see(&chain, 99, 150);
    assert!(freshness(&chain, &recent, 0, 3).starts_with("fresh"));
}

#[test]
fn age_and_freshness_left_add_up_to_max_age() {
    let seconds = Duration::from_secs;
    let stamp = |class| ChainStamp::new(class, 0, None, 1).with_client_lifetime(seconds(5));
    for (class, ttl, since, age) in [
        (Class::Recent, 5, 600, 0),
        (Class::Recent, 2, 600, 3),
        (Class::Recent, 0, 600, 5),
        // Where the tip was not known, more may be left than max-age.
        (Class::Recent, 9, 1, 0),
        // An equal tip proves nothing of a live response.
        (Class::Live, 2, 2, 2),
        (Class::Live, 5, 20, 20),
        (Class::Live, 9, 1, 1),
        (Class::Absent, 1, 3, 3),
        // A final response has its true age.
        (Class::Final, 2, 600, 600),
    ] {
        let actual = stamp(class).age(at(0), seconds(ttl), at(since));
        assert_eq!(actual, seconds(age), "{class:?} {ttl} after {since} s");
    }
}

#[test]
fn a_stale_response_is_as_old_as_its_last_proof() {
    let chain = chain();
    probe(&chain, 100, 1);
    let stamp = |class| ChainStamp::new(class, 0, Some((96, 98)), chain.epoch(0));
    let (recent, live) = (stamp(Class::Recent), stamp(Class::Live));
    let age = |stamp: &ChainStamp, now| {
        let stale = Freshness::Stale {
            by: Duration::from_secs(3),
        };
        chain.age(stamp, at(2), stale, at(now)).as_secs()
    };
    assert_eq!((age(&recent, 33), age(&live, 33)), (31, 31));
    probe(&chain, 100, 30);
    assert_eq!((age(&recent, 33), age(&live, 33)), (3, 31));
    // The last probe of an epoch that has ended is not known.
    probe(&chain, 101, 32);
    assert_eq!((age(&recent, 33), age(&live, 33)), (31, 31));
}

/// Since when a response is unchanged, after a check.
fn checked(chain: &Chain, stamp: &ChainStamp, received: u64, sent: u64, same: bool) -> Option<u64> {
    let since = chain.checked(stamp, at(received), at(sent), same, at(sent));
    since.map(|since| since.millis() / 1000 - 100_000)
}

/// Until when a response that may be checked is known to be unchanged.
fn checkable(chain: &Chain, stamp: &ChainStamp, received: u64, now: u64) -> Option<u64> {
    let ttl = chain.finality().live_ttl;
    let known = chain.checkable_since(stamp, at(received), ttl, at(now));
    known.map(|known| known.millis() / 1000 - 100_000)
}

#[test]
fn live_responses_are_fresh_while_checks_find_no_change() {
    let chain = chain();
    let live = |epoch| ChainStamp::new(Class::Live, 0, None, epoch);
    // The first tip is no new one: nothing is half written.
    probe(&chain, 100, 0);
    let one = live(1);
    probe(&chain, 100, 40);
    assert_eq!(freshness(&chain, &one, 10, 40), "stale 0");
    assert_eq!(
        (
            checkable(&chain, &one, 10, 39),
            checkable(&chain, &one, 10, 40)
        ),
        (None, Some(10))
    );
    assert_eq!(checked(&chain, &one, 5, 36, true), Some(5));
    assert_eq!(
        freshness(&chain, &one, 10, 40),
        "fresh 5",
        "up to the next probe"
    );
    assert_eq!(freshness(&chain, &one, 4, 40), "stale 6", "received before");
    probe(&chain, 100, 70);
    assert_eq!(freshness(&chain, &one, 10, 65), "fresh 1");
    assert_eq!(freshness(&chain, &one, 10, 66), "stale 0");
    assert_eq!(checkable(&chain, &one, 10, 66), Some(36));
    // Twenty times live_ttl is the most.
    for check in 3..=20 {
        probe(&chain, 100, check * 30);
        assert_eq!(
            checked(&chain, &one, check * 30 - 30, check * 30, true),
            Some(check * 30 - 30)
        );
    }
    probe(&chain, 100, 615);
    assert_eq!(
        freshness(&chain, &one, 10, 609),
        "stale 569",
        "no check covers it"
    );
    assert_eq!(freshness(&chain, &one, 60, 615), "fresh 5");
    for check in 21..=22 {
        assert_eq!(
            checked(&chain, &one, check * 30 - 30, check * 30, true),
            Some(check * 30 - 30)
        );
    }
    probe(&chain, 100, 660);
    assert_eq!(freshness(&chain, &one, 60, 659), "fresh 1");
    assert_eq!(freshness(&chain, &one, 60, 661), "stale 1");
    assert_eq!(
        (
            checkable(&chain, &one, 60, 659),
            checkable(&chain, &one, 60, 660)
        ),
        (None, None)
    );
    // A change without a new tip may be half written.
    assert_eq!(checked(&chain, &one, 640, 690, false), None);
    probe(&chain, 100, 690);
    assert_eq!(freshness(&chain, &one, 660, 690), "stale 0");
    assert_eq!(checkable(&chain, &one, 660, 690), None);
    assert_eq!(freshness(&chain, &one, 661, 690), "fresh 1");
    assert_eq!(checked(&chain, &one, 691, 715, true), None);
    assert_eq!(checked(&chain, &one, 720, 750, true), Some(720));
    check_after_a_new_tip(&chain, &one);
}

/// The rest of the test above: answers soon after a new tip may be half written too.
fn check_after_a_new_tip(chain: &Chain, one: &ChainStamp) {
    probe(chain, 100, 755);
    probe(chain, 101, 760);
    let two = ChainStamp::new(Class::Live, 0, None, 2);
    assert_eq!(
        freshness(chain, one, 721, 761),
        "stale 1",
        "its epoch is over"
    );
    assert_eq!(checked(chain, one, 721, 762, true), None);
    assert_eq!(checked(chain, &two, 762, 792, true), None);
    probe(chain, 101, 792);
    assert_eq!(freshness(chain, &two, 762, 792), "stale 0");
    assert_eq!(checked(chain, &two, 790, 820, true), Some(790));
    probe(chain, 101, 822);
    assert_eq!(freshness(chain, &two, 791, 822), "fresh 5");
    // Without a tip, freshness goes by time.
    assert_eq!(freshness(chain, &two, 791, 833), "stale 1");
    assert_eq!(checkable(chain, &two, 791, 851), None);
    assert_eq!(freshness(chain, &two, 830, 833), "fresh 7");
}
