//! The chain during a play: when blocks come, and which reorgs come with them.
//!
//! Invariant: everything follows from the seed.

use fastrand::Rng;

/// The mean time between blocks, in seconds.
pub(crate) const BLOCK_EVERY: f64 = 600.0;
/// The height of the tip at the beginning.
pub(crate) const FIRST_TIP: u32 = 900_000;
/// One block of so many comes with a reorg. On the real chain it is far fewer.
const REORG_EVERY: usize = 6;
/// The deepest reorg.
pub(crate) const DEEPEST: u32 = 3;

/// A new block.
pub(crate) struct Block {
    /// When it comes, in seconds.
    pub(crate) at: f64,
    /// How many blocks below it are replaced at the same moment.
    pub(crate) replaced: u32,
}

/// The blocks of a play, in order.
pub(crate) struct Timeline {
    pub(crate) blocks: Vec<Block>,
    /// When the play ends.
    pub(crate) end: f64,
}

impl Timeline {
    pub(crate) fn new(seed: u64, end: f64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x626c_6f63_6b73);
        let mut blocks = Vec::new();
        let mut at = 0.0;
        loop {
            at += wait(&mut rng, 1.0 / BLOCK_EVERY);
            if at >= end {
                break;
            }
            let with_reorg = blocks.len() % REORG_EVERY == REORG_EVERY - 1;
            let replaced = if with_reorg { rng.u32(1..=DEEPEST) } else { 0 };
            blocks.push(Block { at, replaced });
        }
        Self { blocks, end }
    }

    /// The height of the tip after so many blocks.
    pub(crate) fn tip(&self, blocks: usize) -> u32 {
        FIRST_TIP + blocks as u32
    }

    /// How many blocks have come by a moment.
    pub(crate) fn blocks_by(&self, at: f64) -> usize {
        self.blocks.partition_point(|block| block.at <= at)
    }

    /// The moments that divide the play: its beginning, each block, its end.
    pub(crate) fn bounds(&self) -> Vec<f64> {
        let blocks = self.blocks.iter().map(|block| block.at);
        [0.0].into_iter().chain(blocks).chain([self.end]).collect()
    }

    /// Whether the block of this number replaces the block at a height.
    pub(crate) fn replaces(&self, block: usize, height: u32) -> bool {
        let tip = self.tip(block);
        height <= tip && tip - height < self.blocks[block].replaced
    }
}

/// The time until the next event of a Poisson process; never, if there is none.
pub(crate) fn wait(rng: &mut Rng, rate: f64) -> f64 {
    if rate <= 0.0 {
        return f64::INFINITY;
    }
    -(1.0 - rng.f64()).ln() / rate
}
