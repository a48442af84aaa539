//! Scenes of a chain, told by its status and by answers, in and out of order.

use super::*;

const BOUNDS: LedgerBounds = LedgerBounds {
    blocks: 100,
    margin: 3,
    pause: Duration::from_secs(30),
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

/// A ledger, played by hand.
struct Play(Ledger);

impl Play {
    fn new() -> Self {
        Self(Ledger::new(BOUNDS))
    }

    fn status(&mut self, height: u32, tag: &str) -> Option<Told> {
        let start = self.0.start();
        let tag = Some(tag.as_bytes()).filter(|tag| !tag.is_empty());
        self.0.status(start, Some(height), tag, at(1))
    }

    fn tip(&mut self, height: u32, branch: u8) -> Option<Told> {
        self.status(height, &tag(height, branch))
    }

    fn turn(&mut self, endpoint: u16, height: u32, branch: u8) -> Told {
        self.0.heard_from(endpoint);
        self.tip(height, branch).unwrap()
    }

    fn answer(&mut self, blocks: &[Block], tag: &str) -> Verdict {
        let start = self.0.start();
        self.late(start, blocks, tag)
    }

    fn late(&mut self, start: Start, blocks: &[Block], tag: &str) -> Verdict {
        let facts = Facts {
            blocks,
            empty: None,
            tag: Some(tag.as_bytes()).filter(|tag| !tag.is_empty()),
        };
        self.0.answer(start, facts, at(2))
    }

    fn empty(&mut self, height: u32, tag: &str) -> Verdict {
        let facts = Facts {
            blocks: &[],
            empty: Some(height),
            tag: Some(tag.as_bytes()),
        };
        self.0.answer(self.0.start(), facts, at(2))
    }
}

fn told(verdict: Verdict) -> Told {
    match verdict {
        Verdict::Told(told) => told,
        Verdict::Outdated => panic!("outdated"),
    }
}

#[test]
fn an_epoch_lasts_until_height_or_tag_change() {
    let mut play = Play::new();
    assert_eq!(play.tip(100, 0).unwrap().epoch, 1, "the first is no change");
    assert_eq!(play.tip(100, 0).unwrap().epoch, 1);
    assert_eq!(play.tip(101, 0).unwrap().epoch, 2);
    assert_eq!(play.0.tip(), Some((101, true)));
    assert_eq!(play.0.ended(1), Some(at(1)));
    assert_eq!(play.0.ended(2), None);
    // The ordinals tag: a timestamp that may stay, or change with the height.
    let mut play = Play::new();
    assert_eq!(play.status(100, "\"1700\"").unwrap().epoch, 1);
    let higher = play.status(101, "\"1700\"").unwrap();
    assert_eq!((higher.epoch, higher.orphaned), (2, None));
    let other = play.status(101, "W/\"1800\"").unwrap();
    assert_eq!((other.epoch, other.orphaned), (3, Some(98)), "replaced");
    assert_eq!(play.status(101, "\"1800\"").unwrap().epoch, 3, "the same");
}

#[test]
fn what_was_stored_before_the_first_tip_is_of_no_epoch_that_lasts() {
    let mut play = Play::new();
    assert_eq!(told(play.answer(&[block(90, 0)], "")).epoch, NO_EPOCH);
    // Nor is what teaches nothing, as a token does, or what comes too late.
    let mut play = Play::new();
    assert_eq!(told(play.answer(&[], "")).epoch, NO_EPOCH);
    let start = play.0.start();
    assert_eq!(play.tip(100, 0).unwrap().epoch, 1);
    assert_eq!(play.0.ended(NO_EPOCH), Some(at(1)));
    assert_eq!(told(play.late(start, &[], "")).epoch, NO_EPOCH);
    assert!(!play.0.is_linked(NO_EPOCH, 90));
    assert_eq!(play.tip(100, 0).unwrap().epoch, 1, "it is not the first");
    // Nor is what came when a block of the tip's height had been seen.
    let mut play = Play::new();
    assert_eq!(told(play.answer(&[], "")).epoch, NO_EPOCH);
    assert_eq!(told(play.answer(&[block(100, 0)], "")).epoch, NO_EPOCH);
    assert_eq!(play.tip(100, 0).unwrap().epoch, 1);
}

#[test]
fn heights_and_tags_in_passing_begin_epochs() {
    let mut play = Play::new();
    play.tip(100, 0);
    let plain = told(play.answer(&[block(90, 0)], &tag(100, 0)));
    assert_eq!((plain.epoch, plain.tip, plain.wake), (1, Some(100), false));
    // A tag that changed: the tip is not certain until the status has said it.
    let changed = told(play.answer(&[block(90, 0)], &tag(101, 0)));
    assert_eq!((changed.epoch, changed.tip, changed.wake), (2, None, true));
    let again = told(play.answer(&[block(91, 0)], &tag(101, 0)));
    assert_eq!((again.epoch, again.wake), (2, false));
    let status = play.tip(101, 0).unwrap();
    assert_eq!((status.epoch, status.orphaned), (2, None), "known already");
    // A height above the tip, with the tag of its tip.
    let higher = told(play.answer(&[block(102, 0)], &tag(102, 0)));
    assert_eq!((higher.epoch, higher.tip), (3, Some(102)));
    assert_eq!(play.tip(102, 0).unwrap().epoch, 3);
    // Without tags, heights alone.
    let mut play = Play::new();
    play.status(100, "");
    assert_eq!(told(play.answer(&[block(101, 0)], "")).epoch, 2);
    assert_eq!(play.status(101, "").unwrap().epoch, 2);
}

#[test]
fn a_height_far_above_the_tip_is_not_taken_at_its_word() {
    let mut play = Play::new();
    play.status(100, "");
    let jump = told(play.answer(&[block(104, 0)], ""));
    assert_eq!((jump.tip, jump.wake, jump.epoch), (None, true, 2));
    assert_eq!(play.status(104, "").unwrap().tip, Some(104));
    let near = told(play.answer(&[block(107, 0)], ""));
    assert_eq!((near.tip, near.wake), (Some(107), false));
    // Where no status path says better, it is all there is.
    let mut play = Play::new();
    play.answer(&[block(100, 0)], "");
    assert_eq!(told(play.answer(&[block(900, 0)], "")).tip, Some(900));
}

#[test]
fn tags_of_resources_are_no_signs() {
    let mut play = Play::new();
    play.status(100, "\"status\"");
    for n in 0..9 {
        let told = told(play.answer(&[block(90, 0)], &format!("\"resource-{n}\"")));
        assert_eq!((told.epoch, told.wake), (1, false));
    }
    // One that seemed to be the tip's, and is not: a few false alarms, no more.
    let mut play = Play::new();
    play.status(100, "\"same\"");
    play.answer(&[], "\"same\"");
    let mut epochs = 0;
    for n in 0..20 {
        let before = play.0.epoch();
        play.answer(&[], &format!("\"other-{n}\""));
        epochs += play.0.epoch() - before;
        play.status(100, "\"same\"");
        assert!(play.0.epoch() <= before + 1);
    }
    assert_eq!(epochs, u64::from(FALSE_ALARMS));
}

#[test]
fn another_hash_at_a_height_is_a_reorg() {
    let mut play = Play::new();
    play.tip(100, 0);
    for height in 90..=99 {
        play.answer(&[block(height, 0)], &tag(100, 0));
    }
    let reorg = told(play.answer(&[block(98, 1)], &tag(101, 1)));
    assert_eq!(
        reorg.orphaned,
        Some(95),
        "and what is near below is suspect"
    );
    assert_eq!(reorg.epoch, 2);
    assert!(reorg.wake);
    assert_eq!(play.0.height_of(&id(98, 1)), Some(98));
    assert_eq!(play.0.height_of(&id(98, 0)), None);
    assert_eq!(play.0.height_of(&id(99, 0)), None);
    assert_eq!(play.0.height_of(&id(97, 0)), None, "suspect as well");
    assert_eq!(play.0.height_of(&id(94, 0)), Some(94));
    // Of one reorg each height is seen anew; that is no other one.
    let lower = told(play.answer(&[block(96, 1)], &tag(101, 1)));
    assert_eq!((lower.orphaned, lower.epoch), (None, 2));
    // The same by a transaction that was mined again, and by the tip's tag.
    let mut play = Play::new();
    play.tip(100, 0);
    assert_eq!(play.tip(100, 1).unwrap().orphaned, Some(97));
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[block(101, 0)], &tag(101, 0));
    assert_eq!(play.tip(101, 1).unwrap().orphaned, Some(98));
}

#[test]
fn a_lower_tip_is_the_first_half_of_a_reorg() {
    let mut play = Play::new();
    play.tip(100, 0);
    let rolled_back = play.tip(98, 0).unwrap();
    assert_eq!(rolled_back.orphaned, Some(96));
    assert_eq!(rolled_back.epoch, 2);
    assert_eq!(play.0.tip(), Some((98, true)));
    assert_eq!(play.tip(100, 1).unwrap().epoch, 3);
    // A height that was seen while the status was under way is newer than it.
    let mut play = Play::new();
    play.tip(100, 0);
    let start = play.0.start();
    play.answer(&[block(101, 0)], &tag(101, 0));
    let doubtful = play.0.status(start, Some(100), None, at(3));
    assert_eq!(doubtful, None);
    assert_eq!(play.0.tip(), Some((101, true)));
}

#[test]
fn an_emptied_block_is_undone_and_an_empty_one_is_not() {
    let mut play = Play::new();
    play.tip(100, 0);
    // The tag says that it stands, not that anything happened in it.
    assert_eq!(told(play.empty(100, &tag(100, 0))).orphaned, None);
    play.answer(&[block(99, 0)], &tag(100, 0));
    let emptied = told(play.empty(99, &tag(98, 0)));
    assert_eq!(emptied.orphaned, Some(96));
    assert_eq!(emptied.tip, None, "how far it goes is not known");
    assert_eq!(play.0.height_of(&id(99, 0)), None);
}

#[test]
fn a_status_shows_no_hash_together_with_its_height() {
    let mut play = Play::new();
    play.tip(100, 0);
    // Between its tag and its height a block has come.
    play.status(101, &tag(100, 0));
    assert_eq!(play.0.height_of(&id(100, 0)), None);
    play.answer(&[block(100, 0)], &tag(101, 0));
    assert_eq!(play.0.height_of(&id(100, 0)), Some(100));
}

#[test]
fn an_answer_from_before_a_reorg_is_outdated() {
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[block(99, 0)], &tag(100, 0));
    let before = play.0.start();
    play.answer(&[block(99, 1)], &tag(101, 1));
    let epoch = play.0.epoch();
    for old in [block(99, 0), block(100, 0), block(97, 0)] {
        assert_eq!(play.late(before, &[old], &tag(100, 0)), Verdict::Outdated);
    }
    assert_eq!(play.0.epoch(), epoch, "it has taught nothing");
    assert_eq!(play.0.height_of(&id(99, 1)), Some(99));
    // Far below it still tells the truth, of the time before.
    let below = told(play.late(before, &[block(50, 0)], &tag(100, 0)));
    assert_eq!(below.epoch, 1);
    // Asked for afterwards, the old branch is a reorg back.
    let back = told(play.answer(&[block(99, 0)], &tag(102, 0)));
    assert_eq!(back.orphaned, Some(96));
}

#[test]
fn a_tag_of_a_tip_before_is_not_trusted_either_way() {
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[], &tag(100, 0));
    play.tip(101, 0);
    let lagging = told(play.answer(&[block(90, 0)], &tag(100, 0)));
    assert_eq!((lagging.epoch, lagging.wake), (NO_EPOCH, true));
    assert_eq!(play.0.epoch(), 2);
}

#[test]
fn a_late_answer_is_of_the_epoch_in_which_it_was_asked_for() {
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[], &tag(100, 0));
    let before = play.0.start();
    play.tip(101, 0);
    assert_eq!(told(play.late(before, &[], &tag(100, 0))).epoch, 1);
    assert_eq!(told(play.late(before, &[], "")).epoch, 1);
    let newer = told(play.late(before, &[], &tag(101, 0)));
    assert_eq!(newer.epoch, 2, "its tag is the present tip's hash");
}

#[test]
fn the_tips_own_hash_confirms_it() {
    let mut play = Play::new();
    play.tip(100, 0);
    assert!(told(play.answer(&[], &tag(100, 0))).confirms);
    assert!(!told(play.answer(&[], "")).confirms);
    let changed = told(play.answer(&[], &tag(101, 0)));
    assert!(!changed.confirms);
    assert!(
        !told(play.answer(&[], &tag(101, 0))).confirms,
        "not certain"
    );
    play.tip(101, 0);
    assert!(told(play.answer(&[], &tag(101, 0))).confirms);
    // A timestamp may stay as it was although the tip moved.
    let mut play = Play::new();
    play.status(100, "\"1700\"");
    assert!(!told(play.answer(&[], "\"1700\"")).confirms);
}

#[test]
fn a_block_seen_in_two_epochs_links_them() {
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[block(99, 0)], &tag(100, 0));
    play.tip(100, 0);
    play.tip(101, 0);
    assert!(!play.0.is_linked(1, 90));
    play.answer(&[block(99, 0)], &tag(101, 0));
    assert!(play.0.is_linked(1, 99) && play.0.is_linked(1, 90));
    assert!(!play.0.is_linked(1, 100), "nothing is known of that one");
    play.answer(&[block(100, 0)], &tag(101, 0));
    assert!(play.0.is_linked(1, 100), "the tip of the first epoch");
    // Two links make a way.
    play.tip(101, 0);
    play.tip(102, 0);
    assert!(!play.0.is_linked(1, 90) && !play.0.is_linked(2, 90));
    play.answer(&[block(100, 0)], &tag(102, 0));
    assert!(play.0.is_linked(1, 100) && play.0.is_linked(2, 100));
    assert!(!play.0.is_linked(2, 101) && !play.0.is_linked(NO_EPOCH, 1));
    // Where tags are none of the tip, an epoch may hide a change.
    let mut play = Play::new();
    play.status(100, "");
    play.answer(&[block(99, 0)], "");
    play.status(101, "");
    play.answer(&[block(99, 0)], "");
    assert!(!play.0.is_linked(1, 90));
}

#[test]
fn a_body_may_be_of_a_later_tip_than_its_tag() {
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[block(97, 0)], &tag(100, 0));
    play.tip(100, 0);
    // All above 96 is replaced between this one's tag and its body.
    play.answer(&[block(99, 1)], &tag(100, 0));
    play.tip(101, 1);
    play.answer(&[block(99, 1)], &tag(101, 1));
    assert!(
        !play.0.is_linked(1, 97),
        "who knows whether 99 was seen then"
    );
    play.empty(100, &tag(101, 1));
    assert_eq!(play.0.anchor(1, 97), Some(97));
}

#[test]
fn an_answer_that_was_under_way_over_two_changes_links_nothing() {
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[block(97, 0)], &tag(100, 0));
    let before = play.0.start();
    // All above 96 is replaced, of which first a lower part is seen.
    play.tip(101, 0);
    play.late(before, &[block(99, 1)], &tag(102, 1));
    play.tip(102, 1);
    play.answer(&[block(99, 1)], &tag(102, 1));
    assert!(
        !play.0.is_linked(1, 97),
        "99 of the branch was not seen then"
    );
}

#[test]
fn the_highest_block_that_was_seen_proves_the_most() {
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[block(96, 0)], &tag(100, 0));
    play.answer(&[block(99, 0)], &tag(100, 0));
    assert_eq!(play.0.anchor(1, 96), None, "there is nothing to prove");
    play.tip(100, 0);
    play.tip(101, 0);
    assert_eq!(play.0.anchor(1, 96), Some(100), "it is looked at");
    play.empty(100, &tag(101, 0));
    assert_eq!(play.0.anchor(1, 96), Some(99));
    assert_eq!(play.0.anchor(1, 99), Some(99));
    assert_eq!(play.0.anchor(1, 100), None, "it is without items");
    assert_eq!(play.0.anchor(NO_EPOCH, 96), None);
    play.answer(&[block(96, 0)], &tag(101, 0));
    play.tip(101, 0);
    play.tip(102, 0);
    play.empty(101, &tag(102, 0));
    assert_eq!(play.0.anchor(1, 97), Some(99), "seen in the same epoch");
    assert_eq!(play.0.anchor(1, 96), Some(99));
    assert_eq!(play.0.anchor(2, 96), Some(96), "99 was not seen then");
    // Once it is seen, all is proved.
    play.answer(&[block(99, 0)], &tag(102, 0));
    assert_eq!(play.0.anchor(1, 97), None);
    play.tip(103, 0);
    // A reorg takes the proof with it.
    play.answer(&[block(99, 1)], &tag(104, 1));
    assert_eq!(play.0.anchor(1, 97), None);
}

#[test]
fn what_makes_no_sense_as_a_chain_tells_nothing() {
    let mut play = Play::new();
    play.tip(100, 0);
    let one_at_two = Block {
        height: 91,
        ..block(90, 0)
    };
    for blocks in [[block(90, 0), one_at_two], [block(90, 0), block(90, 1)]] {
        let told = told(play.answer(&blocks, ""));
        assert_eq!((told.orphaned, told.tip), (None, None));
    }
    assert!(play.0.hash_at(90).is_none());
    // Answers that contradict each other all the time, each fine by itself.
    let mut play = Play::new();
    play.status(100, "");
    for n in 0..200_u8 {
        play.answer(&[block(90, n)], "");
    }
    assert_eq!(play.0.reorgs.len(), MOST_CONFLICTS);
    assert_eq!(told(play.answer(&[block(50, 0)], "")).tip, None);
    let start = play.0.start();
    let facts = Facts {
        blocks: &[block(50, 0)],
        ..Facts::default()
    };
    let later = at(2) + CONTRADICTED;
    assert_eq!(told(play.0.answer(start, facts, later)).tip, Some(90));
    // Where each bears the tip's hash, they are reorgs, however many.
    let mut play = Play::new();
    play.tip(100, 0);
    play.answer(&[], &tag(100, 0));
    for n in 1..200_u8 {
        let reorg = told(play.answer(&[block(90, n)], &tag(100, n)));
        assert_eq!(reorg.orphaned.is_some(), n > 1);
    }
}

#[test]
fn memory_is_bounded() {
    let mut play = Play::new();
    play.tip(1, 0);
    for height in 1..5000 {
        play.answer(&[block(height, 0)], &tag(height, 0));
        play.tip(height, (height % 250) as u8);
    }
    let ledger = &play.0;
    assert_eq!(ledger.heights.len(), ledger.hashes.len());
    assert!(ledger.len() <= BOUNDS.blocks);
    assert!(ledger.tags_before.len() <= TAGS_BEFORE && ledger.reorgs.len() <= REORGS);
    assert!(ledger.links.len() <= LINKS && ledger.ended.len() <= EPOCHS);
    assert_eq!(ledger.ended(1), Some(Moment::default()), "long forgotten");
}

proptest::proptest! {
    /// Whatever comes in whatever order: the two sides of the index agree, and
    /// epochs never go back.
    #[test]
    fn the_index_is_whole(steps in proptest::collection::vec((0_u8..4, 90_u32..110, 0_u8..3, 0_usize..4), 1..200)) {
        let mut play = Play::new();
        let mut starts = vec![play.0.start()];
        let mut epoch = NO_EPOCH;
        for (what, height, branch, age) in steps {
            let start = starts[starts.len().saturating_sub(age + 1)];
            match what {
                0 => drop(play.0.status(start, Some(height), Some(tag(height, branch).as_bytes()), at(1))),
                1 => drop(play.late(start, &[block(height, branch)], &tag(height, branch))),
                2 => drop(play.late(start, &[block(height, branch)], "")),
                _ => drop(play.empty(height, &tag(height, branch))),
            }
            starts.push(play.0.start());
            let ledger = &play.0;
            proptest::prop_assert!(ledger.epoch() >= epoch);
            epoch = ledger.epoch();
            proptest::prop_assert_eq!(ledger.heights.len(), ledger.hashes.len());
            for (height, seen) in &ledger.heights {
                proptest::prop_assert_eq!(ledger.hashes.get(&seen.hash), Some(height));
            }
        }
    }
}

/// To turn to an endpoint that is a block behind looked like a reorg.
#[test]
fn another_endpoint_that_is_behind_undoes_nothing() {
    let mut play = Play::new();
    play.turn(0, 99, 0);
    play.answer(&[block(99, 0)], "");
    play.turn(0, 100, 0);
    play.answer(&[block(100, 0)], "");
    let before = play.0.epoch();
    let behind = play.turn(1, 99, 0);
    assert_eq!(behind.orphaned, None);
    assert_eq!(behind.tip, Some(99));
    assert_eq!(behind.epoch, before + 1, "what it says is of another tip");
    // It does not have the block yet.
    let start = play.0.start();
    let facts = Facts {
        blocks: &[],
        empty: Some(100),
        tag: None,
    };
    let Verdict::Told(told) = play.0.answer(start, facts, at(2)) else {
        panic!("it is no contradiction");
    };
    assert_eq!(told.orphaned, None);
    // It comes to it, and from there on it is believed as the one before was.
    assert_eq!(play.turn(1, 100, 0).orphaned, None);
    assert!(
        play.turn(1, 99, 0).orphaned.is_some(),
        "the same one goes back"
    );
    // A block that is another one is a reorg, whoever says so.
    play.turn(1, 100, 0);
    play.turn(1, 101, 0);
    assert_eq!(
        play.turn(0, 101, 1).orphaned.map(|from| from <= 101),
        Some(true)
    );
    // Two that are at one are of one epoch.
    let epoch = play.0.epoch();
    assert_eq!(play.turn(1, 101, 1).epoch, epoch);
}

impl Play {
    fn look(&mut self) -> Look {
        self.0.next_look(at(3))
    }

    /// A look finds a block, or nothing, where the tip is such.
    fn finds(&mut self, height: u32, branch: Option<u8>, tip: (u32, u8)) -> Option<u32> {
        let tag = tag(tip.0, tip.1);
        let verdict = match branch {
            Some(branch) => self.answer(&[block(height, branch)], &tag),
            None => self.empty(height, &tag),
        };
        told(verdict).orphaned
    }
}

#[test]
fn after_a_change_of_tip_the_tip_before_is_looked_at_once() {
    let mut play = Play::new();
    play.tip(100, 0);
    assert_eq!(play.look(), Look::Nowhere, "the first tip is no change");
    play.tip(100, 0);
    assert_eq!(play.look(), Look::Nowhere);
    play.tip(101, 0);
    assert_eq!(play.look(), Look::At(100));
    assert_eq!(play.finds(100, Some(0), (101, 0)), None);
    assert_eq!(play.look(), Look::Nowhere);
    play.tip(101, 0);
    assert_eq!(play.look(), Look::Nowhere, "not again for the same two");
    // What an answer has shown of the new chain need not be looked at.
    play.tip(102, 0);
    play.answer(&[block(101, 0)], &tag(102, 0));
    assert_eq!(play.look(), Look::Nowhere);
    // An answer tells of the change first, and a client of the block.
    play.answer(&[], &tag(103, 0));
    play.answer(&[block(102, 0)], &tag(103, 0));
    play.tip(103, 0);
    assert_eq!(play.look(), Look::Nowhere);
    play.answer(&[], &tag(104, 0));
    play.tip(104, 0);
    assert_eq!(play.look(), Look::At(103));
}

#[test]
fn looks_go_down_until_a_block_stands() {
    let mut play = Play::new();
    for height in [70, 80, 90, 95] {
        play.answer(&[block(height, 0)], &tag(100, 0));
    }
    play.tip(100, 0);
    play.tip(101, 1);
    assert_eq!(play.look(), Look::At(100));
    assert_eq!(play.finds(100, Some(1), (101, 1)), Some(97));
    // What is learned meanwhile says nothing of what was known before.
    play.answer(&[block(92, 1)], &tag(101, 1));
    assert_eq!(play.look(), Look::At(95));
    assert_eq!(play.finds(95, Some(1), (101, 1)), Some(92));
    assert_eq!(play.look(), Look::At(90));
    assert_eq!(play.finds(90, Some(1), (101, 1)), Some(87));
    assert_eq!(play.look(), Look::At(80));
    assert_eq!(play.finds(80, Some(0), (101, 1)), None);
    assert_eq!(play.look(), Look::Nowhere);
    assert_eq!(play.0.hash_at(70), Some(id(70, 0)));
}

#[test]
fn a_reorg_that_shows_itself_is_followed_down_as_well() {
    // In the status: a lower tip, or another of the same height.
    for (height, below) in [(98, 95), (100, 95)] {
        let mut play = Play::new();
        play.answer(&[block(95, 0)], &tag(100, 0));
        play.answer(&[block(80, 0)], &tag(100, 0));
        play.tip(100, 0);
        play.tip(height, 1);
        assert_eq!(play.look(), Look::At(below));
        assert!(play.finds(below, Some(1), (height, 1)).is_some());
        assert_eq!(play.look(), Look::At(80));
    }
    // In an answer, where the status says what it has said.
    let mut play = Play::new();
    for height in [99, 90] {
        play.answer(&[block(height, 0)], "");
    }
    play.status(100, "");
    assert_eq!(told(play.answer(&[block(99, 1)], "")).orphaned, Some(96));
    assert_eq!(play.look(), Look::At(90));
    assert_eq!(told(play.answer(&[block(90, 1)], "")).orphaned, Some(87));
    assert_eq!(play.look(), Look::Nowhere);
    play.status(100, "");
    assert_eq!(play.look(), Look::Nowhere, "all of it is known");
}

#[test]
fn an_empty_block_at_the_tip_before_is_passed_over() {
    let mut play = Play::new();
    play.answer(&[block(90, 0)], &tag(100, 0));
    play.tip(100, 0);
    play.tip(101, 1);
    assert_eq!(play.look(), Look::At(100));
    assert_eq!(play.finds(100, None, (101, 1)), None);
    assert_eq!(play.look(), Look::At(90));
    assert_eq!(play.finds(90, Some(1), (101, 1)), Some(87));
    assert_eq!(play.look(), Look::Nowhere);
}

#[test]
fn a_block_that_was_learned_since_the_last_status_proves_nothing_of_before() {
    // Without tags: of which chain it is nobody knows.
    let mut play = Play::new();
    play.answer(&[block(60, 0)], "");
    play.status(100, "");
    play.answer(&[block(90, 1)], "");
    play.status(101, "");
    assert_eq!(play.look(), Look::At(60));
    assert_eq!(told(play.answer(&[block(60, 1)], "")).orphaned, Some(57));
    assert_eq!(play.look(), Look::Nowhere);
    // Nor does one that was the first to bear the new tip's tag.
    let mut play = Play::new();
    play.answer(&[block(60, 0)], &tag(100, 0));
    play.tip(100, 0);
    play.tip(100, 0);
    play.answer(&[block(90, 1)], &tag(101, 1));
    play.tip(101, 1);
    assert_eq!(play.look(), Look::At(100));
    assert_eq!(play.finds(100, Some(1), (101, 1)), Some(97));
    assert_eq!(play.look(), Look::At(60));
    assert_eq!(play.finds(60, Some(1), (101, 1)), Some(57));
    assert_eq!(play.look(), Look::Nowhere);
    // Nor does what was known before prove it.
    let mut play = Play::new();
    play.answer(&[block(60, 0)], "");
    play.status(100, "");
    play.answer(&[block(90, 0)], "");
    play.status(101, "");
    assert_eq!(play.look(), Look::At(60));
    play.answer(&[block(60, 0)], "");
    assert_eq!(play.look(), Look::At(90));
    assert_eq!(told(play.answer(&[block(90, 1)], "")).orphaned, Some(87));
    // That is another change, which may reach further down.
    assert_eq!(play.look(), Look::At(60));
    play.answer(&[block(60, 0)], "");
    assert_eq!(play.look(), Look::Nowhere);
}

#[test]
fn looks_end() {
    // One that tells nothing is not repeated for the same change.
    let mut play = Play::new();
    play.answer(&[block(90, 0)], &tag(100, 0));
    play.tip(100, 0);
    play.tip(101, 0);
    assert_eq!(play.look(), Look::At(100));
    play.answer(&[], &tag(101, 0));
    assert_eq!(play.look(), Look::Nowhere);
    // One that has failed is, for as long as it fails.
    play.tip(102, 0);
    for _ in 0..100 {
        assert_eq!(play.look(), Look::At(101));
        play.0.look_failed();
    }
    // Meanwhile there is another tip: both changes have to be proven.
    play.tip(103, 1);
    assert_eq!(play.look(), Look::At(101));
    assert_eq!(play.finds(101, Some(0), (103, 1)), None);
    assert_eq!(play.look(), Look::At(102));
    assert_eq!(play.finds(102, Some(0), (103, 1)), None);
    assert_eq!(play.look(), Look::Nowhere);
    // Below a reorg without end nothing counts.
    let mut play = Play::new();
    for height in 0..100 {
        play.answer(&[block(height, 0)], &tag(100, 0));
    }
    play.tip(100, 0);
    play.tip(101, 1);
    let mut looks = 0;
    let undone = loop {
        match play.look() {
            Look::At(height) => {
                looks += 1;
                assert!(play.finds(height, Some(1), (101, 1)).is_some());
            }
            undone @ (Look::Nowhere | Look::Undone(_)) => break undone,
        }
    };
    assert_eq!((looks, undone), (16, Look::Undone(0)));
    assert_eq!(play.look(), Look::Nowhere);
    assert!(play.0.is_empty());
}

/// Looks that failed for long, or many blocks that were learned since the last
/// status, are no sign of a reorg.
#[test]
fn where_all_stands_nothing_is_undone_however_much_is_unproven() {
    // Blocks cannot be looked at while the chain goes on.
    let mut play = Play::new();
    play.answer(&[block(90, 0)], &tag(100, 0));
    for height in 100..130 {
        play.tip(height, 0);
        if let Look::At(_) = play.look() {
            play.0.look_failed();
        }
    }
    let undone = loop {
        match play.look() {
            Look::At(height) => assert_eq!(play.finds(height, Some(0), (129, 0)), None),
            undone @ (Look::Nowhere | Look::Undone(_)) => break undone,
        }
    };
    // The first tip stands; which of those since are undone nobody knows.
    assert_eq!(undone, Look::Undone(98));
    assert_eq!(play.0.hash_at(90), Some(id(90, 0)));
    // Without tags, somebody walks up the chain.
    let mut play = Play::new();
    play.answer(&[block(50, 0)], "");
    play.status(100, "");
    for height in 60..90 {
        play.answer(&[block(height, 0)], "");
    }
    play.status(101, "");
    assert_eq!(play.look(), Look::At(50), "the block that was known before");
    play.answer(&[block(50, 0)], "");
    let undone = loop {
        match play.look() {
            Look::At(height) => drop(told(play.answer(&[block(height, 0)], ""))),
            undone @ (Look::Nowhere | Look::Undone(_)) => break undone,
        }
    };
    assert_eq!(undone, Look::Undone(48));
    // On a chain of which nothing names a block there is nothing to undo.
    let mut play = Play::new();
    for height in 100..130 {
        play.tip(height, 0);
        if let Look::At(_) = play.look() {
            play.0.look_failed();
        }
    }
    let nowhere = loop {
        match play.look() {
            Look::At(height) => assert_eq!(play.finds(height, None, (129, 0)), None),
            nowhere @ (Look::Nowhere | Look::Undone(_)) => break nowhere,
        }
    };
    assert_eq!(nowhere, Look::Nowhere);
}

#[test]
fn an_endpoint_that_is_behind_is_looked_at_where_it_is() {
    let mut play = Play::new();
    play.turn(0, 95, 0);
    play.turn(0, 96, 0);
    play.answer(&[block(95, 0)], &tag(96, 0));
    assert_eq!(play.look(), Look::Nowhere);
    play.answer(&[block(94, 0)], &tag(96, 0));
    play.turn(0, 96, 0);
    play.turn(1, 94, 0);
    assert_eq!(play.look(), Look::Nowhere, "its tip was known before");
    play.turn(1, 95, 1);
    assert_eq!(play.look(), Look::Nowhere, "a reorg, and nothing was below");
}

/// The block that is to be looked at proves recent entries too.
#[test]
fn a_look_is_the_anchor_of_recent_entries() {
    let mut play = Play::new();
    play.tip(100, 0);
    told(play.answer(&[block(97, 0)], &tag(100, 0)));
    play.tip(100, 0);
    play.tip(100, 0);
    assert_eq!(play.tip(101, 0).unwrap().epoch, 2);
    assert_eq!(play.0.anchor(1, 97), Some(100));
    assert_eq!(play.look(), Look::At(100));
    play.finds(100, None, (101, 0));
    assert_eq!(play.0.anchor(1, 97), Some(97), "nothing is there");
    assert_eq!(play.look(), Look::At(97));
    play.finds(97, Some(0), (101, 0));
    assert!(play.0.is_linked(1, 97));
    assert_eq!((play.0.anchor(1, 97), play.look()), (None, Look::Nowhere));
}
