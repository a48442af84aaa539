//! A ledger that is given statuses and answers, in and out of order.

mod epochs;
mod fork_search;
mod links;
mod reorgs;

use super::reorgs::{CONFLICT_PERIOD, MOST_CONFLICTS};
use super::tags::MOST_FALSE_ALARMS;
use super::*;

const BOUNDS: LedgerBounds = LedgerBounds {
    blocks: 100,
    margin: 3,
    write_time: Duration::from_secs(30),
};

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000)
}

/// The hash of the block at a height on a branch.
fn id(height: u32, branch: u8) -> Hash {
    let mut hash = [branch; 32];
    hash[..4].copy_from_slice(&height.to_be_bytes());
    hash
}

fn block(height: u32, branch: u8) -> Block {
    Block {
        height,
        hash: id(height, branch),
    }
}

/// The tag of a tip, as the reference upstream's runes indexer has it.
fn tag(height: u32, branch: u8) -> String {
    format!("\"{}\"", crate::pages::hex(&id(height, branch)))
}

/// A ledger with shorthands for statuses and answers.
struct TestLedger(Ledger);

impl TestLedger {
    fn new() -> Self {
        Self(Ledger::new(BOUNDS))
    }

    fn status(&mut self, height: u32, tag: &str) -> Option<LedgerUpdate> {
        let start = self.0.start();
        let tag = Some(tag.as_bytes()).filter(|tag| !tag.is_empty());
        self.0.status(start, Some(height), tag, at(1))
    }

    fn tip(&mut self, height: u32, branch: u8) -> Option<LedgerUpdate> {
        self.status(height, &tag(height, branch))
    }

    fn status_from(&mut self, endpoint: u16, height: u32, branch: u8) -> LedgerUpdate {
        self.0.set_status_endpoint(endpoint);
        self.tip(height, branch).unwrap()
    }

    fn answer(&mut self, blocks: &[Block], tag: &str) -> ObservationResult {
        let start = self.0.start();
        self.answer_to(start, blocks, tag)
    }

    fn answer_to(&mut self, start: RequestStart, blocks: &[Block], tag: &str) -> ObservationResult {
        let observation = Observation {
            blocks,
            empty_block: None,
            etag: Some(tag.as_bytes()).filter(|tag| !tag.is_empty()),
        };
        self.0.observe(start, observation, at(2))
    }

    fn empty(&mut self, height: u32, tag: &str) -> ObservationResult {
        let observation = Observation {
            blocks: &[],
            empty_block: Some(height),
            etag: Some(tag.as_bytes()),
        };
        self.0.observe(self.0.start(), observation, at(2))
    }
}

fn applied(result: ObservationResult) -> LedgerUpdate {
    match result {
        ObservationResult::Applied(update) => update,
        ObservationResult::Outdated => panic!("outdated"),
    }
}

#[test]
fn memory_is_bounded() {
    let mut test = TestLedger::new();
    test.tip(1, 0);
    for height in 1..5000 {
        test.answer(&[block(height, 0)], &tag(height, 0));
        test.tip(height, (height % 250) as u8);
    }
    let ledger = &test.0;
    assert!(ledger.len() <= BOUNDS.blocks && ledger.blocks.is_consistent());
    assert_eq!(ledger.ended(1), Some(Moment::default()), "long forgotten");
    let mut queue = std::collections::VecDeque::new();
    for n in 0..10 {
        super::epochs::push_bounded(&mut queue, n, 3);
    }
    assert_eq!(queue, [7, 8, 9]);
}

proptest::proptest! {
    /// Whatever is observed in whatever order: heights and hashes are consistent, and
    /// epochs never decrease.
    #[test]
    fn blocks_are_consistent_and_epochs_ascend(steps in proptest::collection::vec((0_u8..4, 90_u32..110, 0_u8..3, 0_usize..4), 1..200)) {
        let mut test = TestLedger::new();
        let mut starts = vec![test.0.start()];
        let mut epoch = NO_EPOCH;
        for (what, height, branch, age) in steps {
            let start = starts[starts.len().saturating_sub(age + 1)];
            match what {
                0 => drop(test.0.status(start, Some(height), Some(tag(height, branch).as_bytes()), at(1))),
                1 => drop(test.answer_to(start, &[block(height, branch)], &tag(height, branch))),
                2 => drop(test.answer_to(start, &[block(height, branch)], "")),
                _ => drop(test.empty(height, &tag(height, branch))),
            }
            starts.push(test.0.start());
            let ledger = &test.0;
            proptest::prop_assert!(ledger.epoch() >= epoch);
            epoch = ledger.epoch();
            proptest::prop_assert!(ledger.blocks.is_consistent());
        }
    }
}
