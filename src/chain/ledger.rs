//! What is known of one indexer's chain: its tip, the epoch, which block stands
//! at which height. Pure: moments and answers are arguments.
//!
//! Two kinds of answers come in. The status path says the tip
//! ([`Ledger::status`]); every other answer names blocks and, as the reference
//! upstream has it, carries the tip's tag ([`Ledger::answer`]). Answers may come
//! out of order. So each request takes a [`Start`] before it is sent, and
//! beats, which count what was learned, tell whether an answer that contradicts
//! what is known was asked for afterwards, and is believed, or before, and is
//! [`Verdict::Outdated`].
//!
//! An epoch is a stretch of time in which nothing of this changed. Since a
//! block's hash commits to all blocks below it, a block that is seen in two
//! epochs proves that both agree up to its height: a link ([`Ledger::is_linked`]).
//! Since a body may be of a later tip than its tag, the first sight counts where
//! a later request has found the tip still the same.
//!
//! A status tells of a new tip and of nothing below it: whether blocks far down
//! were replaced with it is found out by looks at single blocks
//! ([`Ledger::next_look`]).
//!
//! Deliberately absent: locks, the cache, and who asks when (`chain`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::quality::FixedState;

use super::finality::{Checks, MOST_CHECKED, checked_until};
use crate::clock::Moment;
use crate::pages::{Block, Hash, hash};

/// A number of an epoch. The first is 1, and begins with the first word of a tip.
pub type Epoch = u64;

/// No epoch: what is labelled so is stale as soon as a tip is known. Before, times
/// count.
pub const NO_EPOCH: Epoch = 0;

/// Where the ledger stood when a request was about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    beat: u64,
    epoch: Epoch,
    /// A hash of the tip's tag.
    tag: Option<u64>,
    tick: u64,
}

/// What an answer says of the chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// The blocks that it names.
    pub blocks: &'a [Block],
    /// The height of a block that was asked for whole, from its beginning, and
    /// is empty.
    pub empty: Option<u32>,
    /// Its `etag`, as it came.
    pub tag: Option<&'a [u8]>,
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was asked for before something that contradicts it was learned: it
    /// may tell of what is no more, and is to be asked for again.
    Outdated,
    /// It is believed.
    Told(Told),
}

/// What was learned from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The epoch in which it holds.
    pub epoch: Epoch,
    /// The height of the tip, where it is certain.
    pub tip: Option<u32>,
    /// All that names a block at this height or above has to go: they were
    /// undone, or may have been.
    pub orphaned: Option<u32>,
    /// Whether the status path should be asked soon.
    pub wake: bool,
    /// Whether it shows the tip to be as it was, beyond doubt: it bears the
    /// hash of the tip.
    pub confirms: bool,
}

/// One indexer's chain.
#[derive(Debug)]
pub struct Ledger {
    beat: u64,
    epoch: Epoch,
    tip: Option<Tip>,
    /// What the status path said last.
    said: Option<Said>,
    tag: Option<Tag>,
    /// Tags of tips before, newest last.
    tags_before: VecDeque<Tag>,
    tags: Tags,
    heights: BTreeMap<u32, Seen>,
    hashes: HashMap<Hash, u32>,
    reorgs: VecDeque<Reorg>,
    /// When bodies told of reorgs that no tag did.
    conflicts: VecDeque<Moment>,
    links: VecDeque<Link>,
    ended: VecDeque<Ended>,
    /// Answers so far.
    tick: u64,
    /// The last answer after which the tip is known to have been what its tag
    /// said: whatever came up to then was of this tip, and of none after it.
    sure: u64,
    /// When the tip was lost, if it is.
    lost: Option<Moment>,
    /// Which endpoint of the upstream has said the tip last, and whether the
    /// one that says it next is another.
    speaker: Option<u16>,
    turned: bool,
    /// The change of tip that looks at blocks have not borne out yet.
    unproven: Option<Unproven>,
    checks: Checks,
    bounds: LedgerBounds,
}

/// How much is remembered, and how far a reorg reaches.
#[derive(Clone, Copy, Debug)]
pub struct LedgerBounds {
    /// Heights of which the hash is remembered; the lowest make room.
    pub blocks: usize,
    /// Blocks below the highest that is known to be undone that are not trusted
    /// either: of a reorg its lowest block is seldom the first to be seen.
    pub margin: u32,
    /// For so long after a new tip, its indexer may still be writing.
    pub pause: Duration,
}

/// What the status path has said.
#[derive(Clone, Debug)]
struct Said {
    height: u32,
    tag: Option<Tag>,
    /// The beat at which it was asked, and the one after it had answered.
    asked: u64,
    told: u64,
    /// The epoch then.
    epoch: Epoch,
}

type Tag = Box<[u8]>;

#[derive(Clone, Copy, Debug)]
struct Tip {
    height: u32,
    /// When that was learned.
    beat: u64,
    /// Whether nothing has been seen since that may have lowered it.
    certain: bool,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    hash: Hash,
    /// When that was learned first.
    beat: u64,
    /// The last epoch in which it was seen.
    epoch: Epoch,
    /// Which answer was the first to show it then.
    tick: u64,
    /// Whether it has items, all operations counted.
    items: bool,
    /// Whether it is known to have none.
    empty: bool,
}

/// An epoch that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    epoch: Epoch,
    /// When it ceased to keep answers fresh.
    at: Moment,
    /// What [`Ledger::sure`] was.
    sure: u64,
    /// Beginning and end of the time in which checks found live answers
    /// unchanged.
    checked: (Moment, Moment),
}

#[derive(Clone, Copy, Debug)]
struct Reorg {
    beat: u64,
    from: u32,
    /// The epoch that it began.
    epoch: Epoch,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    from: Epoch,
    to: Epoch,
    height: u32,
}

/// Whether tags of answers are those of the tip, as the reference upstream has
/// it. Other upstreams may tag each resource.
#[derive(Clone, Copy, Debug)]
enum Tags {
    /// Not known yet.
    Unproven,
    /// An answer has borne the tag of the status path; so many times since has
    /// a changed tag not been confirmed by it.
    OfTip { false_alarms: u8 },
    /// They change without the tip.
    OfResources,
}

/// Changed tags that the status path did not confirm, before tags are believed
/// no longer.
const FALSE_ALARMS: u8 = 3;
const TAGS_BEFORE: usize = 64;
const REORGS: usize = 256;
const LINKS: usize = 512;
const EPOCHS: usize = 4096;
/// Heights that are looked through for one that proves something.
const ANCHORS: usize = 64;

/// So many reorgs within [`CONTRADICTED`] that nothing but bodies told of are
/// none.
const MOST_CONFLICTS: usize = 32;
const CONTRADICTED: Duration = Duration::from_secs(60);

/// What an observation changes.
#[derive(Default)]
struct Change {
    begins: bool,
    orphaned: Option<u32>,
}

impl Change {
    fn orphan(&mut self, from: u32) {
        self.orphaned = Some(self.orphaned.map_or(from, |other| other.min(from)));
    }
}

impl Ledger {
    /// Nothing is known.
    pub fn new(bounds: LedgerBounds) -> Self {
        Self {
            beat: 0,
            epoch: NO_EPOCH,
            tip: None,
            said: None,
            tag: None,
            tags_before: VecDeque::new(),
            tags: Tags::Unproven,
            heights: BTreeMap::new(),
            hashes: HashMap::new(),
            reorgs: VecDeque::new(),
            conflicts: VecDeque::new(),
            links: VecDeque::new(),
            ended: VecDeque::new(),
            tick: 0,
            sure: 0,
            lost: None,
            speaker: None,
            turned: false,
            unproven: None,
            checks: Checks::default(),
            bounds,
        }
    }

    /// Remembers so much from now on.
    pub fn bound(&mut self, bounds: LedgerBounds) {
        self.bounds = bounds;
        while self.heights.len() > bounds.blocks {
            let Some((_, lowest)) = self.heights.pop_first() else {
                return;
            };
            self.hashes.remove(&lowest.hash);
        }
    }

    /// To be taken before a request is sent.
    pub fn start(&self) -> Start {
        Start {
            beat: self.beat,
            epoch: self.epoch,
            tag: self.tag.as_deref().map(brief),
            tick: self.tick,
        }
    }

    /// The present epoch.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The tip's height, where one is known, and whether it is certain.
    pub fn tip(&self) -> Option<(u32, bool)> {
        self.tip.map(|tip| (tip.height, tip.certain))
    }

    /// Whether the status path has ever said a height.
    pub const fn has_said(&self) -> bool {
        self.said.is_some()
    }

    /// The tip's tag as the status path said it, without quotes.
    pub fn tag(&self) -> Option<&[u8]> {
        self.tag.as_deref()
    }

    /// The hash of the block at a height.
    pub fn hash_at(&self, height: u32) -> Option<Hash> {
        self.heights.get(&height).map(|seen| seen.hash)
    }

    /// The height of a block that stands in the chain, where an answer has
    /// shown the two together. The status does not: its tag is decided before
    /// its height, and may be that of the tip before.
    pub fn height_of(&self, hash: &Hash) -> Option<u32> {
        let height = self.hashes.get(hash)?;
        let seen = self.heights.get(height)?;
        seen.items.then_some(*height)
    }

    /// Heights of which the hash is known.
    pub fn len(&self) -> usize {
        self.heights.len()
    }

    /// Whether no block is known.
    pub fn is_empty(&self) -> bool {
        self.heights.is_empty()
    }

    /// When an epoch ended; `None` for the present one, and the clock's
    /// beginning for one that is long forgotten.
    pub fn ended(&self, epoch: Epoch) -> Option<Moment> {
        if epoch == self.epoch {
            return None;
        }
        let ended = self.ended_epoch(epoch);
        Some(ended.map_or(Moment::default(), |ended| ended.at))
    }

    /// What checks have shown of live answers in the present epoch.
    pub const fn checks(&self) -> &Checks {
        &self.checks
    }

    /// Until when a live answer of an epoch that has ended would have been fresh
    /// without that.
    pub fn live_until(&self, epoch: Epoch, received: Moment, lifetime: Duration) -> Moment {
        let ended = self.ended_epoch(epoch);
        let known = ended.map_or(received, |ended| checked_until(ended.checked, received));
        (known + lifetime).min(received + lifetime * MOST_CHECKED)
    }

    /// A live answer of an epoch, which has been the same since a moment, has
    /// been fetched again by a request that was sent at another. Answers whether
    /// that shows that nothing has changed: one that was half written tells
    /// nothing.
    pub fn checked(
        &mut self,
        epoch: Epoch,
        since: Moment,
        sent: Moment,
        same: bool,
        now: Moment,
    ) -> bool {
        if epoch != self.epoch || !self.checks.is_stable(since) {
            return false;
        }
        match same {
            true => self.checks.unchanged(since, sent),
            false => self.checks.restart(now, self.bounds.pause),
        }
        same
    }

    fn ended_epoch(&self, epoch: Epoch) -> Option<Ended> {
        let at = self.ended.binary_search_by_key(&epoch, |e| e.epoch).ok()?;
        self.ended.get(at).copied()
    }

    /// To be said before an answer is told: when the tip was lost, if it is. An
    /// epoch that ends now has kept nothing fresh since.
    pub fn lost_at(&mut self, lost: Option<Moment>) {
        self.lost = lost;
    }

    /// To be said before a status is told: which endpoint says it. One that is
    /// behind the one before undoes nothing; it has not got there yet.
    pub fn heard_from(&mut self, endpoint: u16) {
        self.turned = self.speaker.is_some_and(|speaker| speaker != endpoint);
        self.speaker = Some(endpoint);
    }

    /// What the status path has answered: the tip's height, unless the index is
    /// empty, and its tag. Answers with what was learned; `None` where a height
    /// that was seen in passing makes it doubtful, and it has to be asked
    /// again.
    pub fn status(
        &mut self,
        start: Start,
        height: Option<u32>,
        tag: Option<&[u8]>,
        now: Moment,
    ) -> Option<Told> {
        let tag = tag.map(bare);
        self.count(start, tag);
        let turned = std::mem::take(&mut self.turned);
        // What was asked for before the first word of a tip may be of a tip
        // before that one, even where an answer has shown a block as high.
        let mut change = Change {
            begins: height.is_some() && (self.said.is_none() || self.tip.is_none()),
            ..Change::default()
        };
        match (self.tip, height) {
            (None, _) => {}
            // Nothing of the one before is known to be undone: but what is
            // asked from now on is of another tip.
            (Some(tip), height) if turned => {
                change.begins |= height != Some(tip.height) || tag != self.tag.as_deref();
            }
            // The index has been emptied.
            (Some(_), None) => change.orphan(0),
            (Some(tip), Some(height)) => {
                if height < tip.height {
                    if start.beat < tip.beat {
                        return None;
                    }
                    change.orphan(height + 1);
                }
                // Unless the new tip was known by its tag already.
                let known = !tip.certain && tag.is_some() && self.tag.as_deref() == tag;
                change.begins |= height > tip.height && !known;
                // Two tips of one height: one has replaced the other.
                if let Some(said) = &self.said
                    && said.height == height
                    && let (Some(before), Some(tag)) = (&said.tag, tag)
                    && **before != *tag
                {
                    change.orphan(height);
                }
            }
        }
        let block = height.zip(tag.and_then(as_hash));
        if let Some((height, hash)) = block
            && self
                .heights
                .get(&height)
                .is_some_and(|seen| seen.hash != hash)
        {
            change.orphan(height);
        }
        self.judge_tags(height, tag, &mut change);
        let told_before = self.said.as_ref().and_then(|said| said.tag.as_deref());
        if let (Some(before), Some(tag)) = (told_before, tag) {
            change.begins |= before != tag && self.tag.as_deref() != Some(tag);
        }
        let is_other = self
            .said
            .as_ref()
            .is_some_and(|said| height != Some(said.height) || tag != said.tag.as_deref());
        let told = self.said.as_ref().map(|said| said.told);
        let last = self.reorgs.back().filter(|last| told < Some(last.beat));
        let undone = last.map(|last| last.epoch);
        let orphaned = self.turn(change, now);
        if turned {
            // Of one tip, another endpoint may have written more or less.
            self.checks.restart(now, self.bounds.pause);
        }
        if is_other || orphaned.is_some() {
            self.doubt_blocks(height.unwrap_or(0), self.epoch);
        } else if let Some(epoch) = undone {
            // An answer has told of a reorg. What was seen since then stands.
            self.doubt_blocks(u32::MAX, epoch);
        }
        self.beat += 1;
        self.tip = height.map(|height| Tip {
            height,
            beat: self.beat,
            certain: true,
        });
        if let Some(tag) = tag {
            self.set_tag(tag);
        }
        if let Some((height, hash)) = block {
            self.see(Block { height, hash }, false, self.epoch);
        }
        self.said = Some(Said {
            height: height.unwrap_or(0),
            tag: tag.map(Box::from),
            asked: start.beat,
            told: self.beat,
            epoch: self.epoch,
        });
        Some(Told {
            epoch: self.epoch,
            tip: height,
            orphaned,
            wake: false,
            confirms: true,
        })
    }

    /// A changed tag of an answer that the status path does not know of was no
    /// sign of the tip.
    fn judge_tags(&mut self, height: Option<u32>, tag: Option<&[u8]>, change: &mut Change) {
        let Tags::OfTip { false_alarms } = &mut self.tags else {
            return;
        };
        let alarmed = self.said.as_ref().is_some_and(|said| {
            height == Some(said.height) && said.tag.as_deref() == tag && self.tag.as_deref() != tag
        });
        if !alarmed {
            return;
        }
        // The answers of the false epoch are no worse for it.
        change.begins = false;
        *false_alarms += 1;
        if *false_alarms >= FALSE_ALARMS {
            self.tags = Tags::OfResources;
        }
    }

    /// What an answer of any other path says. What its blocks say counts only
    /// where it makes sense as a chain.
    pub fn answer(&mut self, start: Start, facts: Facts<'_>, now: Moment) -> Verdict {
        let senseless = is_contradictory(facts.blocks) || self.is_contradicted(now);
        let facts = match senseless {
            true => Facts {
                tag: facts.tag,
                ..Facts::default()
            },
            false => facts,
        };
        self.count(start, facts.tag.map(bare));
        if self.is_outdated(start, facts) {
            return Verdict::Outdated;
        }
        let mut change = Change::default();
        for block in facts.blocks {
            let seen = self.heights.get(&block.height);
            if seen.is_some_and(|seen| seen.hash != block.hash) {
                change.orphan(block.height);
            }
        }
        // What had items and has none was undone; unless another endpoint is
        // asked by now, which has not come so far.
        if let Some(height) = facts.empty
            && self.heights.get(&height).is_some_and(|seen| seen.items)
            && self.tip.is_none_or(|tip| height <= tip.height)
        {
            change.orphan(height);
        }
        let highest = facts.blocks.iter().map(|block| block.height).max();
        let grows = match (highest, self.tip) {
            (Some(highest), Some(tip)) => highest > tip.height,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let tag = facts.tag.map(bare);
        let sign = self.sign(start, tag);
        // Unless the new tip was known by its tag already.
        let known = sign == Sign::Same && self.tip.is_some_and(|tip| !tip.certain);
        change.begins = sign == Sign::NewTip || grows && self.tip.is_some() && !known;
        let in_present = start.epoch == self.epoch;
        if change.orphaned.is_some() {
            self.note_conflict(now);
        }
        // Not where the tip has only come back to what the status says.
        let said = self.said.as_ref().map(|said| said.height);
        let is_other = sign == Sign::NewTip || change.orphaned.is_some() || highest > said;
        let orphaned = self.turn(change, now);
        if is_other {
            self.doubt_blocks(u32::MAX, self.epoch);
        }
        if orphaned.is_some() || grows || sign == Sign::NewTip {
            self.beat += 1;
        }
        self.move_tip(facts.empty, highest, grows, orphaned.is_some());
        if sign == Sign::NewTip
            && let Some(tag) = tag
        {
            self.set_tag(tag);
            if !grows && orphaned.is_none() {
                self.doubt_tip();
            }
        }
        let epoch = match sign {
            // The tip's own hash, decided before the look-up: what follows is
            // of this tip or of a later one.
            Sign::Same if tag.is_some_and(|tag| as_hash(tag).is_some()) => self.epoch,
            Sign::Other => NO_EPOCH,
            Sign::Same | Sign::None | Sign::NewTip if in_present => self.epoch,
            Sign::Same | Sign::None | Sign::NewTip => start.epoch,
        };
        // What was asked for in an epoch before may be of any since, unless it
        // bears that one's tag: then it proves nothing of either.
        let is_of_start = tag.map(brief) == start.tag;
        let seen_in = match epoch == self.epoch || is_of_start {
            true => epoch,
            false => NO_EPOCH,
        };
        for block in facts.blocks {
            self.see(*block, true, seen_in);
        }
        if let Some(height) = facts.empty.filter(|_| epoch == self.epoch) {
            self.see_empty(height);
        }
        Verdict::Told(Told {
            epoch,
            tip: self
                .tip
                .filter(|tip| tip.certain && !senseless)
                .map(|tip| tip.height),
            orphaned,
            wake: orphaned.is_some()
                || matches!(sign, Sign::NewTip | Sign::Other)
                || self.tip.is_some_and(|tip| grows && !tip.certain),
            confirms: sign == Sign::Same && self.is_certain_of(tag),
        })
    }

    /// Whether there were more reorgs lately than any chain has: then the
    /// upstream's answers contradict each other, and tell nothing of blocks.
    fn is_contradicted(&self, now: Moment) -> bool {
        let first = self.conflicts.len().checked_sub(MOST_CONFLICTS);
        first.is_some_and(|first| now.since(self.conflicts[first]) < CONTRADICTED)
    }

    /// Notes a reorg that bodies alone tell of. Where answers bear the tip's
    /// tag, it changes with each, and they are believed.
    fn note_conflict(&mut self, now: Moment) {
        if matches!(self.tags, Tags::OfTip { .. }) {
            return;
        }
        self.conflicts.push_back(now);
        if self.conflicts.len() > MOST_CONFLICTS {
            self.conflicts.pop_front();
        }
    }

    /// Whether a tag is the hash of the block that certainly is the tip.
    fn is_certain_of(&self, tag: Option<&[u8]>) -> bool {
        let tip = self.tip.filter(|tip| tip.certain);
        let hash = tip.and_then(|tip| self.hash_at(tip.height));
        hash.is_some() && tag.and_then(as_hash) == hash
    }

    /// Whether an answer contradicts what was learned since it was asked for.
    fn is_outdated(&self, start: Start, facts: Facts<'_>) -> bool {
        let undone = |height: u32| {
            let mut reorgs = self.reorgs.iter();
            reorgs.any(|reorg| start.beat < reorg.beat && height >= reorg.from)
        };
        let contradicts = |block: &Block| {
            let seen = self.heights.get(&block.height);
            seen.is_some_and(|seen| seen.hash != block.hash && start.beat < seen.beat)
        };
        let emptied = facts.empty.is_some_and(|height| {
            let seen = self.heights.get(&height);
            seen.is_some_and(|seen| seen.items && start.beat < seen.beat)
        });
        let mut blocks = facts.blocks.iter();
        emptied || blocks.any(|block| undone(block.height) || contradicts(block))
    }

    /// What an answer's tag tells of the tip.
    fn sign(&mut self, start: Start, tag: Option<&[u8]>) -> Sign {
        let (Some(tag), Some(present)) = (tag, &self.tag) else {
            return Sign::None;
        };
        let same = *tag == **present;
        match self.tags {
            Tags::OfResources => Sign::None,
            Tags::Unproven if same => {
                self.tags = Tags::OfTip { false_alarms: 0 };
                Sign::Same
            }
            Tags::Unproven => Sign::None,
            Tags::OfTip { .. } if same => Sign::Same,
            // Another change has come between: this tells of the time before.
            Tags::OfTip { .. } if start.epoch != self.epoch => Sign::None,
            // A tip that was before: the chain has been rolled back, or another
            // server answers that lags. The status path knows.
            Tags::OfTip { .. } if self.tags_before.iter().any(|before| **before == *tag) => {
                Sign::Other
            }
            Tags::OfTip { .. } => Sign::NewTip,
        }
    }

    fn move_tip(&mut self, empty: Option<u32>, highest: Option<u32>, grows: bool, undone: bool) {
        // A block that is named stands: the tip is as high at the least. But
        // one far above what the status path has said is not taken at its word.
        let is_near = |height: u32| {
            let before = self.tip.map_or(height, |tip| tip.height);
            self.said.is_none() || height.saturating_sub(before) <= self.bounds.margin
        };
        let seen = highest.map(|height| (height, is_near(height)));
        let below = empty.map(|height| (height.saturating_sub(1), false));
        let moved = match (undone, grows) {
            (true, _) => seen.or(below),
            (false, true) => seen,
            (false, false) => None,
        };
        if let Some((height, certain)) = moved {
            self.tip = Some(Tip {
                height,
                beat: self.beat,
                certain,
            });
        }
    }

    fn doubt_tip(&mut self) {
        if let Some(tip) = &mut self.tip {
            tip.certain = false;
        }
    }

    fn set_tag(&mut self, tag: &[u8]) {
        if self.tag.as_deref() == Some(tag) {
            return;
        }
        self.tags_before.retain(|before| **before != *tag);
        if let Some(before) = self.tag.replace(tag.into()) {
            self.tags_before.push_back(before);
        }
        if self.tags_before.len() > TAGS_BEFORE {
            self.tags_before.pop_front();
        }
    }

    /// Begins a new epoch where there is cause, and forgets what was undone;
    /// answers from which height on that is to go everywhere.
    fn turn(&mut self, change: Change, now: Moment) -> Option<u32> {
        if !change.begins && change.orphaned.is_none() {
            return None;
        }
        self.ended.push_back(Ended {
            epoch: self.epoch,
            at: self.lost.map_or(now, |lost| lost.min(now)),
            sure: self.sure,
            checked: self.checks.stretch(),
        });
        if self.ended.len() > EPOCHS {
            self.ended.pop_front();
        }
        // The first tip that is known is no new one.
        if self.epoch > NO_EPOCH {
            self.checks.restart(now, self.bounds.pause);
        }
        self.epoch += 1;
        let suspect = change.orphaned?.saturating_sub(self.bounds.margin);
        // What is suspect is not known either: else each of its heights, as it
        // is seen anew, would be another reorg.
        for (_, seen) in self.heights.split_off(&suspect) {
            self.hashes.remove(&seen.hash);
        }
        self.reorgs.push_back(Reorg {
            beat: self.beat + 1,
            from: suspect,
            epoch: self.epoch,
        });
        if self.reorgs.len() > REORGS {
            self.reorgs.pop_front();
        }
        Some(suspect)
    }

    /// Counts an answer. Its tag was decided after its request was sent and
    /// before its body was looked up: so the body may be of a later tip, and an
    /// equal tag says of all that came before the request that it was not.
    fn count(&mut self, start: Start, tag: Option<&[u8]>) {
        if tag.is_some() && self.tag.as_deref() == tag {
            self.sure = self.sure.max(start.tick);
        }
        self.tick += 1;
    }

    /// Whether a block was seen in an epoch that has ended, beyond doubt.
    fn is_sure(&self, seen: &Seen) -> bool {
        let ended = self.ended_epoch(seen.epoch);
        ended.is_some_and(|ended| seen.tick <= ended.sure)
    }

    /// Notes that a block stands at its height.
    fn see(&mut self, block: Block, items: bool, epoch: Epoch) {
        let present = epoch == self.epoch;
        // Only where each answer bears the tip's hash can nothing have changed
        // within an epoch unnoticed.
        let before = self.heights.get(&block.height).copied();
        let links = self.is_homogeneous() && before.is_some_and(|seen| self.is_sure(&seen));
        if let Some(seen) = self.heights.get_mut(&block.height)
            && seen.hash == block.hash
        {
            seen.items |= items;
            if present && seen.epoch != epoch {
                if links {
                    self.links.push_back(Link {
                        from: seen.epoch,
                        to: epoch,
                        height: block.height,
                    });
                }
                seen.epoch = epoch;
                seen.tick = self.tick;
            }
            if self.links.len() > LINKS {
                self.links.pop_front();
            }
            return;
        }
        self.beat += 1;
        if let Some(elsewhere) = self.hashes.insert(block.hash, block.height) {
            self.heights.remove(&elsewhere);
        }
        let seen = Seen {
            hash: block.hash,
            beat: self.beat,
            epoch,
            tick: self.tick,
            items,
            empty: false,
        };
        if let Some(before) = self.heights.insert(block.height, seen) {
            self.hashes.remove(&before.hash);
        }
        if self.heights.len() > self.bounds.blocks
            && let Some((_, lowest)) = self.heights.pop_first()
        {
            self.hashes.remove(&lowest.hash);
        }
    }

    /// Whether what was true up to a height in an epoch is still true: a block
    /// at that height or above was seen then and is seen now.
    pub fn is_linked(&self, epoch: Epoch, height: u32) -> bool {
        if epoch == self.epoch {
            return true;
        }
        // Links are in the order of the epochs that they lead to.
        let is_linked = self.links.back().is_some_and(|link| link.to == self.epoch);
        is_linked && self.reached(epoch, height).contains(&self.epoch)
    }

    /// The height of a block that, were it seen to stand now, would prove that
    /// what was true up to a height in an epoch is still true: the highest of
    /// those, which proves the most. None where it is proved.
    pub fn anchor(&self, epoch: Epoch, height: u32) -> Option<u32> {
        if epoch == self.epoch || !self.is_homogeneous() {
            return None;
        }
        let reached = self.reached(epoch, height);
        if reached.contains(&self.epoch) {
            return None;
        }
        let above = self.heights.range(height..).rev().take(ANCHORS);
        // The block that is about to be looked at will do, whether it has items
        // or not: so one request serves both.
        let looked_at = self.suspect();
        let shows = |height: u32, seen: &Seen| seen.items || looked_at == Some(height);
        let proves = |seen: &Seen| reached.contains(&seen.epoch) && self.is_sure(seen);
        let mut proofs = above.filter(|(height, seen)| shows(**height, seen) && proves(seen));
        proofs.next().map(|(height, _)| *height)
    }

    /// The epochs that agree with one up to a height, itself among them.
    fn reached(&self, epoch: Epoch, height: u32) -> Vec<Epoch> {
        if epoch == NO_EPOCH {
            return Vec::new();
        }
        let mut reached = vec![epoch];
        for link in self.links.iter().filter(|link| link.height >= height) {
            if reached.contains(&link.from) && !reached.contains(&link.to) {
                reached.push(link.to);
            }
        }
        reached
    }

    /// Whether nothing can have changed within an epoch unnoticed: only where
    /// each answer bears the tip's hash.
    fn is_homogeneous(&self) -> bool {
        let tag = self.tag.as_deref();
        matches!(self.tags, Tags::OfTip { .. }) && tag.is_some_and(|tag| as_hash(tag).is_some())
    }
}

/// Whether blocks, each of which is named once, cannot be of one chain: two at
/// one height, or one at two.
fn is_contradictory(blocks: &[Block]) -> bool {
    let heights: HashSet<_> = blocks.iter().map(|block| block.height).collect();
    let hashes: HashSet<_> = blocks.iter().map(|block| block.hash).collect();
    heights.len() < blocks.len() || hashes.len() < blocks.len()
}

/// What a tag tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// Nothing.
    None,
    /// The tip is as it was.
    Same,
    /// There is a new tip.
    NewTip,
    /// Another tip than the present one, that was before.
    Other,
}

/// A tag without what marks it as weak and without its quotes.
fn bare(tag: &[u8]) -> &[u8] {
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    tag.strip_prefix(b"\"")
        .and_then(|tag| tag.strip_suffix(b"\""))
        .unwrap_or(tag)
}

/// A tag in a word.
fn brief(tag: &[u8]) -> u64 {
    FixedState::default().hash_one(tag)
}

/// The hash of the tip, where a tag is that.
fn as_hash(tag: &[u8]) -> Option<Hash> {
    hash(std::str::from_utf8(tag).ok()?)
}

mod looks;
pub use looks::Look;
use looks::Unproven;

#[cfg(test)]
mod tests;
