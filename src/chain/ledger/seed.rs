//! Blocks that an earlier run of the process knew.
//!
//! The chain may have changed since. A block's hash commits to all blocks below it: so
//! once one of these blocks is seen again, it and all of them below it stand in the epoch
//! in which it was seen ([`Ledger::stood`]). Until then they prove nothing, but another
//! block at the height of one is a reorg, like any other. The highest is requested first
//! ([`Ledger::next_seed_check`]); after a reorg the highest of those that are left.

use super::blocks::KnownBlock;
use super::{Block, Change, Epoch, Ledger, NO_EPOCH};
use crate::clock::Moment;

/// The most checks of a run. After a reorg each is further below the one before; so many
/// go as deep as a search for the fork point.
const MOST_CHECKS: u32 = 16;

/// The most runs whose answers are vouched for. What older ones stored is fetched again.
pub(crate) const MOST_RUNS: usize = 64;

/// What one run of the process leaves to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownBlocks {
    /// Blocks of one chain, and whether they have items.
    pub(crate) blocks: Vec<(Block, bool)>,
    /// The runs whose answers name blocks of that chain, the oldest first.
    pub(crate) runs: Vec<KnownRun>,
}

impl KnownBlocks {
    /// Leaves out the blocks at a height and above.
    pub(crate) fn cut_off(&mut self, height: Option<u32>) {
        let stays = |(block, _): &(Block, bool)| height.is_none_or(|height| block.height < height);
        self.blocks.retain(stays);
    }
}

/// A run of the process whose answers name blocks of a chain.
///
/// Blocks of a later run prove nothing for an answer above: it may name one that was
/// replaced while no process was there to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownRun {
    /// The number of its state (`Chain::state_number`).
    pub(crate) state: u64,
    /// The height up to which that is known.
    pub(crate) up_to: u32,
}

/// What became of the blocks of an earlier run.
#[derive(Debug, Default)]
pub(super) struct Seed {
    /// The highest of them that was seen again, and the last epoch in which it was.
    stands: Option<(u32, Epoch)>,
    runs: Vec<KnownRun>,
    checks: u32,
    last_check: Option<u32>,
}

/// The next step of the check of an earlier run's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeedCheck {
    /// Request the block at this height.
    At(u32),
    /// None of the blocks from this height on still stands, or it is not known: what
    /// names one is to be purged.
    Orphaned(u32),
    /// There is nothing to check, or nothing that can be checked now.
    None,
}

impl Ledger {
    /// Takes over the blocks of an earlier run, unless something is known already. Returns
    /// whether there are any to check.
    pub(crate) fn seed(&mut self, known: &KnownBlocks) -> bool {
        if self.revision > 0 || self.blocks.len() > 0 {
            return false;
        }
        self.seed.runs.clone_from(&known.runs);
        for (block, has_items) in &known.blocks {
            let known = KnownBlock {
                hash: block.hash,
                revision: 0,
                epoch: NO_EPOCH,
                // It is certain of no epoch.
                answer: u64::MAX,
                has_items: *has_items,
                is_empty: false,
                is_seed: true,
            };
            self.blocks.insert(block.height, known, self.bounds.blocks);
        }
        !known.blocks.is_empty()
    }

    /// The blocks, for the next run, and the runs that they speak for: this one by the
    /// number of its state, and earlier ones as far as their blocks were seen to stand.
    /// `None` while it is not known whether all are of one chain, or while blocks of an
    /// earlier run are still to be checked.
    pub(crate) fn known_blocks(&self, state: u64) -> Option<KnownBlocks> {
        if self.fork_search.is_some() || self.unseen().next().is_some() {
            return None;
        }
        // A block that was not seen again and cannot be checked is of no use.
        let open = self.first_open();
        let blocks = self.blocks.from(0);
        let blocks = blocks.filter(|(height, known)| !known.is_seed || *height < open);
        let blocks = blocks.map(|(height, known)| {
            let hash = known.hash;
            (Block { height, hash }, known.has_items)
        });
        let own = KnownRun {
            state,
            up_to: u32::MAX,
        };
        let earlier = self.seed.runs.iter().rev().take(MOST_RUNS - 1).rev();
        let earlier = earlier.filter_map(|run| self.run(run.state));
        Some(KnownBlocks {
            blocks: blocks.collect(),
            runs: earlier.chain([own]).collect(),
        })
    }

    /// An earlier run, and the height up to which its answers name blocks that are known
    /// to stand.
    fn run(&self, state: u64) -> Option<KnownRun> {
        let (height, _) = self.seed.stands?;
        let run = self.seed.runs.iter().find(|run| run.state == state)?;
        let up_to = run.up_to.min(height);
        Some(KnownRun { state, up_to })
    }

    /// The epoch of this run in which the blocks up to a height stood that an answer of an
    /// earlier run names, where that is known. Whether they still do is that epoch's
    /// question ([`Ledger::is_linked`]), as for an answer of it.
    pub(crate) fn stood(&self, state: u64, highest: u32) -> Option<Epoch> {
        let run = self.run(state).filter(|run| highest <= run.up_to);
        run.and(self.seed.stands).map(|(_, epoch)| epoch)
    }

    /// Notes that a block of the earlier run was seen in an epoch.
    pub(super) fn confirm_seed(&mut self, height: u32, epoch: Epoch) {
        let seen = (height, epoch);
        let says_more = self.seed.stands.is_none_or(|known| {
            // One that was orphaned since says nothing of the present chain.
            let is_known = self.blocks.get(known.0).is_some_and(|block| block.is_seed);
            known <= seen || !is_known
        });
        if epoch != NO_EPOCH && says_more {
            self.seed.stands = Some(seen);
        }
    }

    /// The first height above those that are known to stand.
    fn first_open(&self) -> u32 {
        let stands = self.seed.stands;
        stands.map_or(0, |(height, _)| height.saturating_add(1))
    }

    /// The heights of the earlier run's blocks that can be checked and are not known to
    /// stand, ascending. One that is seen again proves those below it.
    fn unseen(&self) -> impl DoubleEndedIterator<Item = u32> {
        let open = self.blocks.from(self.first_open());
        let open = open.filter(|(_, known)| known.is_seed && known.has_items);
        open.map(|(height, _)| height)
    }

    /// The next block of the earlier run to check. To be called again after each check
    /// that had an answer.
    pub(crate) fn next_seed_check(&mut self, now: Moment) -> SeedCheck {
        let Some((tip, _)) = self.tip() else {
            return SeedCheck::None;
        };
        let next = self.unseen().rev().find(|height| *height <= tip);
        // Where a check has changed nothing, another would not either: the upstream may
        // be behind. A new tip may help.
        let Some(height) = next.filter(|height| self.seed.last_check != Some(*height)) else {
            return SeedCheck::None;
        };
        if self.seed.checks < MOST_CHECKS {
            self.seed.checks += 1;
            self.seed.last_check = Some(height);
            return SeedCheck::At(height);
        }
        let change = Change {
            begins_epoch: false,
            orphaned: Some(self.first_open().saturating_add(self.bounds.margin)),
        };
        let from = self.apply(change, now);
        self.revision += 1;
        from.map_or(SeedCheck::None, SeedCheck::Orphaned)
    }

    /// The chain has changed: a check that was without effect may have one now.
    pub(super) fn expect_seed(&mut self) {
        self.seed.last_check = None;
    }

    /// The last check had no answer: it is to be tried again.
    pub(crate) fn retry_seed_check(&mut self) {
        if self.seed.last_check.take().is_some() {
            self.seed.checks = self.seed.checks.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LedgerBounds, Observation, ObservationResult};
    use super::*;
    use std::time::Duration;

    const NOW: Moment = Moment::from_nanos(1 << 50);

    fn block(height: u32, chain: u8) -> Block {
        let mut hash = [chain; 32];
        hash[..4].copy_from_slice(&height.to_le_bytes());
        Block { height, hash }
    }

    const fn run(state: u64, up_to: u32) -> KnownRun {
        KnownRun { state, up_to }
    }

    /// What run 1 leaves to the next.
    fn known(blocks: impl IntoIterator<Item = (Block, bool)>) -> KnownBlocks {
        KnownBlocks {
            blocks: blocks.into_iter().collect(),
            runs: vec![run(1, u32::MAX)],
        }
    }

    /// A ledger after a run that knew blocks 100 to 140 of chain 1, whose upstream
    /// reports a tip.
    fn seeded(tip: Option<u32>) -> Ledger {
        let mut ledger = Ledger::new(LedgerBounds {
            blocks: 1000,
            margin: 12,
            write_time: Duration::ZERO,
        });
        ledger.seed(&known((100..=140).map(|height| (block(height, 1), true))));
        if tip.is_some() {
            ledger.status(ledger.start(), tip, None, NOW).unwrap();
        }
        ledger
    }

    /// The upstream answers with its block at a height.
    fn answer(ledger: &mut Ledger, block: Block) -> Option<u32> {
        let observation = Observation {
            blocks: &[block],
            ..Observation::default()
        };
        match ledger.observe(ledger.start(), observation, NOW) {
            ObservationResult::Applied(update) => update.orphaned,
            ObservationResult::Outdated => panic!("outdated"),
        }
    }

    fn stands(ledger: &Ledger) -> Option<u32> {
        ledger.seed.stands.map(|(height, _)| height)
    }

    #[test]
    fn one_check_shows_that_all_blocks_still_stand() {
        let mut ledger = seeded(None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None, "no tip");
        let mut ledger = {
            ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
            ledger
        };
        assert_eq!(ledger.seed.stands, None);
        assert_eq!(ledger.known_blocks(2), None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
        assert_eq!(answer(&mut ledger, block(140, 1)), None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
        assert_eq!(stands(&ledger), Some(140));
        assert_eq!(ledger.known_blocks(2).unwrap().blocks.len(), 41);
    }

    #[test]
    fn a_reorg_while_it_was_down_is_found_and_what_is_left_is_checked() {
        let mut ledger = seeded(Some(150));
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
        // The fork is at 120: blocks above are others.
        assert_eq!(answer(&mut ledger, block(140, 2)), Some(128));
        assert_eq!(ledger.seed.stands, None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(127));
        assert_eq!(answer(&mut ledger, block(127, 2)), Some(115));
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(114));
        assert_eq!(answer(&mut ledger, block(114, 1)), None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
        assert_eq!(stands(&ledger), Some(114));
    }

    #[test]
    fn what_an_answer_shows_of_a_block_counts_for_those_below_it_only() {
        let mut ledger = seeded(Some(150));
        assert_eq!(answer(&mut ledger, block(110, 1)), None);
        assert_eq!(stands(&ledger), Some(110));
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
        assert_eq!(answer(&mut ledger, block(140, 2)), Some(128));
        assert_eq!(stands(&ledger), Some(110), "it was seen in this run");
    }

    #[test]
    fn a_check_without_effect_is_repeated_only_after_a_new_tip() {
        let mut ledger = seeded(Some(120));
        assert_eq!(
            ledger.next_seed_check(NOW),
            SeedCheck::At(120),
            "at most the tip"
        );
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
        ledger.retry_seed_check();
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(120));
        assert_eq!(answer(&mut ledger, block(120, 1)), None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
        assert_eq!(stands(&ledger), Some(120));
        assert_eq!(ledger.known_blocks(2), None, "those above are unchecked");
    }

    #[test]
    fn after_many_checks_in_vain_no_block_stands() {
        let mut ledger = Ledger::new(LedgerBounds {
            blocks: 10_000,
            margin: 2,
            write_time: Duration::ZERO,
        });
        ledger.seed(&known((100..=900).map(|height| (block(height, 1), true))));
        ledger.status(ledger.start(), Some(900), None, NOW).unwrap();
        let mut checks = 0;
        loop {
            match ledger.next_seed_check(NOW) {
                SeedCheck::At(height) => {
                    checks += 1;
                    answer(&mut ledger, block(height, 2)).unwrap();
                }
                SeedCheck::Orphaned(from) => {
                    assert_eq!(from, 0);
                    break;
                }
                SeedCheck::None => panic!("after {checks}"),
            }
        }
        assert_eq!(checks, MOST_CHECKS);
        assert_eq!(ledger.seed.stands, None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
    }

    #[test]
    fn blocks_stand_in_the_epoch_in_which_one_was_seen() {
        let mut ledger = seeded(Some(150));
        let first = ledger.epoch();
        assert_eq!(answer(&mut ledger, block(140, 1)), None);
        assert_eq!(ledger.seed.stands, Some((140, first)));
        ledger.status(ledger.start(), Some(151), None, NOW).unwrap();
        assert_eq!(ledger.seed.stands, Some((140, first)), "unchecked since");
        let lower = block(120, 1);
        assert_eq!(answer(&mut ledger, lower), None);
        assert_eq!(ledger.seed.stands, Some((140, first)));
        assert_eq!(answer(&mut ledger, block(140, 1)), None);
        assert_eq!(ledger.seed.stands, Some((140, first + 1)));
        // Where it is orphaned, a lower one that is seen says more.
        assert_eq!(answer(&mut ledger, block(139, 2)), Some(127));
        assert_eq!(answer(&mut ledger, lower), None);
        let last = ledger.epoch();
        assert!(last > first + 1);
        assert_eq!(ledger.seed.stands, Some((120, last)));
    }

    #[test]
    fn an_answer_of_no_certain_epoch_confirms_nothing() {
        let mut ledger = seeded(Some(150));
        let start = ledger.start();
        ledger.status(ledger.start(), Some(151), None, NOW).unwrap();
        let observation = Observation {
            blocks: &[block(140, 1)],
            etag: Some(b"another"),
            ..Observation::default()
        };
        ledger.observe(start, observation, NOW);
        assert_eq!(ledger.seed.stands, None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    }

    #[test]
    fn a_block_that_cannot_be_checked_does_not_keep_the_others_from_the_next_run() {
        let mut ledger = Ledger::new(seeded(None).bounds);
        // The second as a status records the tip: it cannot be requested.
        ledger.seed(&known([(block(140, 1), true), (block(141, 1), false)]));
        ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
        assert_eq!(ledger.known_blocks(2), None);
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
        assert_eq!(answer(&mut ledger, block(140, 1)), None);
        assert_eq!(answer(&mut ledger, block(145, 1)), None);
        let next = ledger.known_blocks(2).unwrap();
        let heights: Vec<_> = next.blocks.iter().map(|(block, _)| block.height).collect();
        assert_eq!(heights, [140, 145]);
        assert_eq!(next.runs, [run(1, 140), run(2, u32::MAX)]);
    }

    #[test]
    fn blocks_of_a_later_run_prove_nothing_for_answers_above_those_that_were_seen() {
        let mut ledger = seeded(Some(150));
        assert_eq!(answer(&mut ledger, block(140, 1)), None);
        // Run 1 knew no block 141, though an answer of it may name one.
        assert_eq!(answer(&mut ledger, block(145, 1)), None);
        assert_eq!(ledger.stood(1, 141), None);
        let mut next = Ledger::new(ledger.bounds);
        next.seed(&ledger.known_blocks(2).unwrap());
        next.status(next.start(), Some(150), None, NOW).unwrap();
        assert_eq!(answer(&mut next, block(145, 1)), None);
        let epoch = Some(next.epoch());
        assert_eq!((next.stood(1, 140), next.stood(1, 141)), (epoch, None));
        assert_eq!((next.stood(2, 145), next.stood(2, 146)), (epoch, None));
        assert_eq!(
            next.stood(3, 100),
            None,
            "a run that the file does not name"
        );
    }

    #[test]
    fn blocks_that_were_cut_off_prove_nothing() {
        let mut cut = known((100..=140).map(|height| (block(height, 1), true)));
        cut.cut_off(None);
        assert_eq!(cut.blocks.len(), 41);
        cut.cut_off(Some(130));
        let mut ledger = Ledger::new(seeded(None).bounds);
        ledger.seed(&cut);
        ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(129));
        assert_eq!(answer(&mut ledger, block(140, 1)), None);
        assert_eq!(answer(&mut ledger, block(129, 1)), None);
        let epoch = Some(ledger.epoch());
        assert_eq!((ledger.stood(1, 129), ledger.stood(1, 130)), (epoch, None));
    }

    #[test]
    fn the_runs_that_are_spoken_for_are_bounded() {
        let mut ledger = seeded(Some(150));
        for state in 2..200 {
            assert_eq!(answer(&mut ledger, block(140, 1)), None);
            let known = ledger.known_blocks(state).unwrap();
            assert!(known.runs.len() <= MOST_RUNS);
            assert_eq!(known.runs.last(), Some(&run(state, u32::MAX)));
            ledger = Ledger::new(ledger.bounds);
            ledger.seed(&known);
            ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
        }
    }

    #[test]
    fn what_is_known_is_not_replaced() {
        let mut ledger = seeded(Some(150));
        answer(&mut ledger, block(140, 2));
        ledger.seed(&known([(block(130, 1), true)]));
        assert_eq!(ledger.hash_at(130), None);
    }
}
