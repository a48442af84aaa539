//! Values, ages, and what may be used by what is known of the chain.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use proptest::prelude::*;

use super::usable::{EngineTime, stamp_here};
use super::value::{self, LONG, MOST_VALUE, SharedPosition};
use crate::cache::encodings::Encodings;
use crate::cache::etag::etag;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::sequence::CheckedSequence;
use crate::cache::{Attached, StoredResponse};
use crate::chain::finality::Class;
use crate::chain::ledger::Observation;
use crate::chain::{Chain, ChainStamp, Settings, TipMark};
use crate::clock::Moment;
use crate::pages::Block;
use crate::portable::codec::{Head, KeptStamp};
use crate::portable::digest::MeaningDigest;
use crate::shared::journal::JournalPosition;
use crate::shared::journal::position::Generation;

const NOW: Moment = Moment::from_nanos(1 << 50);

fn hash(height: u32, branch: u8) -> [u8; 32] {
    let mut hash = [branch; 32];
    hash[..4].copy_from_slice(&height.to_be_bytes());
    hash
}

fn mark(height: u32, branch: u8) -> TipMark {
    TipMark {
        height,
        tag: hash(height, branch),
        is_hash: true,
    }
}

pub(super) fn position(mark: Option<TipMark>) -> SharedPosition {
    let journal = JournalPosition {
        generation: Generation([7; 16]),
        record: 9,
    };
    SharedPosition { journal, mark }
}

pub(super) fn stored(body: &[u8], stamp: Option<ChainStamp>) -> StoredResponse {
    let content_type = HeaderValue::from_static("application/json");
    StoredResponse {
        status: StatusCode::OK,
        etag: etag(body),
        metadata: Metadata::of(content_type, ClientFreshness::Nothing),
        received: NOW,
        lifetime: Duration::from_secs(9),
        took: Duration::from_millis(3),
        body: Bytes::copy_from_slice(body),
        encodings: Encodings::allowed(true),
        checked: CheckedSequence::default(),
        attached: Attached { stamp, page: None },
    }
}

fn values() -> Vec<Vec<u8>> {
    let stamp = |class, heights| Some(ChainStamp::new(class, 3, heights, 5));
    let responses = [
        (None, stored(b"{}", None)),
        (Some(mark(7, 1)), stored(b"{}", stamp(Class::Live, None))),
        (
            None,
            stored(&[b'a'; 4096], stamp(Class::Final, Some((1, 2)))),
        ),
    ];
    let write = |(mark, response): &(Option<TipMark>, StoredResponse)| {
        let head = Head {
            checked: position(*mark),
            route: MeaningDigest([4; 32]),
            target: "/a?b=c",
        };
        value::write(&head, response, 1_700_000_000_123)
    };
    responses.iter().map(write).collect()
}

#[test]
fn a_value_is_read_as_it_was_written_and_whole() {
    let values = values();
    let (head, kept) = value::read(&values[1], LONG).unwrap();
    assert_eq!(head.checked, position(Some(mark(7, 1))));
    assert_eq!(
        (head.route, head.target),
        (MeaningDigest([4; 32]), "/a?b=c")
    );
    assert_eq!(kept.received, 1_700_000_000_123);
    let stamp = kept.stamp.unwrap();
    assert_eq!((stamp.class, stamp.heights), (Class::Live, None));
    assert_eq!((stamp.state, stamp.epoch), (0, 0), "they mean nothing here");
    for written in values {
        for len in 0..written.len() {
            assert!(value::read(&written[..len], LONG).is_none(), "{len}");
        }
        let longer = [&written[..], b"x"].concat();
        assert!(value::read(&longer, LONG).is_none());
    }
    assert!(value::read(&vec![0; MOST_VALUE + 1], LONG).is_none());
}

proptest! {
    #[test]
    fn a_damaged_value_is_none(which in 0..3_usize, at in any::<prop::sample::Index>(), bits in 1..=255_u8) {
        let mut written = values().swap_remove(which);
        let at = at.index(written.len());
        written[at] ^= bits;
        prop_assert!(value::read(&written, LONG).is_none());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut record = Vec::new();
        crate::portable::bytes::put_record(&mut record, &bytes);
        let _is_value = value::read(&record, LONG);
        let _is_value = value::read(&bytes, LONG);
    }

    /// The clocks of both processes and of the engine have nothing in common, and each
    /// message takes its time: nothing becomes younger.
    #[test]
    fn nothing_is_younger_for_its_reader(engine in 0..1_u64 << 40, delays in prop::collection::vec(0..5_000_000_u64, 8)) {
        let engine_at = |micros: u64| (engine + micros) / 1000;
        let moment = |micros: u64| Moment::from_nanos(micros * 1000);
        // When what happens, in microseconds: the writer's look-up is sent, read by the
        // engine, and arrives; the response is received; the same of the reader.
        let mut at = [0; 8];
        let mut now = 0;
        for (at, delay) in at.iter_mut().zip(&delays) {
            now += delay;
            *at = now;
        }
        let writer = EngineTime { now_ms: engine_at(at[1]), sent: moment(at[0]), arrived: moment(at[2]) };
        let received = writer.at(moment(at[3]));
        let reader = EngineTime { now_ms: engine_at(at[6]), sent: moment(at[5]), arrived: moment(at[7]) };
        let age = reader.age(received).unwrap();
        let true_age = Duration::from_micros(at[7] - at[3]);
        prop_assert!(age >= true_age, "{age:?} {true_age:?}");
        let extra = Duration::from_micros(at[7] - at[5] + at[2] - at[1] + 3000);
        prop_assert!(age <= true_age + extra, "{age:?} {true_age:?}");
    }
}

#[test]
fn what_is_newer_than_the_engines_clock_has_no_age() {
    let time = EngineTime {
        now_ms: 100,
        sent: NOW,
        arrived: NOW,
    };
    assert_eq!(time.age(101), None);
    assert_eq!(time.age(100), Some(Duration::from_millis(1)));
}

/// A chain with a tip that an answer has borne.
fn chain_at(height: u32, branch: u8) -> Chain {
    let chain = Chain::new(&Settings::of_tests());
    learn(&chain, height, branch, &[]);
    chain
}

fn learn(chain: &Chain, height: u32, branch: u8, seen: &[Block]) {
    let tag = crate::pages::hex(&hash(height, branch));
    let status = || {
        let start = chain.request_start(0).unwrap();
        chain.apply_status(0, start, NOW, Some(height), Some(tag.as_bytes()), NOW);
    };
    status();
    let start = chain.request_start(0).unwrap();
    let observation = Observation {
        blocks: seen,
        etag: Some(tag.as_bytes()),
        ..Observation::default()
    };
    chain.apply_answer(0, start, NOW, observation, NOW);
    status();
}

/// One row for each class and relation of both replicas' tips.
#[test]
fn what_may_be_used_by_what_is_known_of_the_chain() {
    let same = chain_at(100, 0);
    let later = chain_at(100, 0);
    let next = Block {
        height: 101,
        hash: hash(101, 0),
    };
    learn(&later, 101, 0, &[next]);
    let reorganised = chain_at(100, 0);
    learn(&reorganised, 100, 1, &[]);
    let other = chain_at(100, 1);
    let unknown = Chain::without_tips();
    let chains = [&same, &later, &reorganised, &other, &unknown];
    let (tip, higher) = (Some(mark(100, 0)), Some((99, 101)));
    let table = [
        // class, heights, mark; usable by each chain
        (
            Class::Final,
            Some((1, 94)),
            None,
            [true, true, true, true, false],
        ),
        (
            Class::Final,
            Some((1, 95)),
            None,
            [false, true, false, false, false],
        ),
        (Class::Final, None, None, [false; 5]),
        (
            Class::Recent,
            Some((99, 100)),
            tip,
            [true, true, false, false, false],
        ),
        (Class::Recent, higher, tip, [false; 5]),
        (Class::Recent, None, tip, [false; 5]),
        (Class::Recent, Some((99, 100)), None, [false; 5]),
        (Class::Live, None, tip, [true, false, false, false, false]),
        (
            Class::Live,
            Some((1, 100)),
            tip,
            [true, false, false, false, false],
        ),
        (Class::Live, None, None, [false; 5]),
        (Class::Absent, None, tip, [true, false, false, false, false]),
        (Class::Absent, None, None, [false; 5]),
    ];
    for (class, heights, mark, usable) in table {
        let stamp = KeptStamp {
            state: 0,
            epoch: 0,
            class,
            heights,
        };
        for (at, (chain, usable)) in chains.iter().zip(usable).enumerate() {
            let here = stamp_here(chain, 0, stamp, mark);
            let row = (class, heights, at);
            assert_eq!(here.is_some(), usable, "{row:?}");
            let Some(here) = here else {
                continue;
            };
            assert_eq!((here.class, here.heights), (class, heights), "{row:?}");
            // A recent one of an epoch that has ended needs a link to the present.
            let is_of_former = class == Class::Recent && at == 1;
            assert_eq!(here.epoch < chain.epoch(0), is_of_former, "{row:?}");
        }
    }
}

/// The seeds of the fuzz target.
#[test]
fn the_seeds_are_values() {
    let whole = include_bytes!("../../../fuzz/corpus/shared_value/value");
    let (head, kept) = value::read(whole, LONG).unwrap();
    assert_eq!(head.target, "/ordinals/v1/brc-20/tokens/ordi");
    assert_eq!(kept.body, "{\"ok\":true}");
    for (seed, expected) in [
        (&whole[..], true),
        (
            include_bytes!("../../../fuzz/corpus/shared_value/content"),
            true,
        ),
        (
            include_bytes!("../../../fuzz/corpus/shared_value/torn"),
            false,
        ),
    ] {
        assert_eq!(value::decode_any(seed), expected);
    }
}
