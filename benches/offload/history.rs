//! The chain's history during the trace, and the truth about any request at
//! any moment of it.
//!
//! All subjects see the same: a fresh sandbox of the same seed, to which the
//! same is done at the same moments. So what a version of the chain answers is
//! computed once, from a sandbox of its own that has got so far. Invariant: a
//! version's sandbox never changes.

use std::collections::HashMap;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use ordgate::sandbox::{Answer, Sandbox, Settings};

use crate::ask::Page;

/// A block comes so often.
pub(crate) const BLOCK_EVERY: Duration = Duration::from_secs(4);
/// Every so many-th of them comes with a reorg.
const REORG_EVERY: u32 = 5;
/// Between the halves of the reorg that comes in two.
const HALF: Duration = Duration::from_millis(1500);
/// So long before a block the token indexer has it, every third time.
const AHEAD: Duration = Duration::from_millis(500);
/// How long the upstream takes for any answer.
const LATENCY: Duration = Duration::from_millis(20);
/// No reorg of the trace is deeper.
const DEEPEST: u32 = 3;

/// What is done to the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Block,
    Reorg(u32),
    Rollback(u32),
    Apply,
    TokensAhead,
}

impl Change {
    pub(crate) fn apply(self, sandbox: &Sandbox) {
        match self {
            Self::Block => sandbox.advance(1),
            Self::Reorg(depth) => {
                sandbox.reorg(depth);
            }
            Self::Rollback(depth) => {
                sandbox.rollback(depth);
            }
            Self::Apply => {
                sandbox.apply();
            }
            Self::TokensAhead => sandbox.tokens_ahead(),
        }
    }
}

/// A block that was replaced.
pub(crate) struct Orphan {
    pub(crate) hash: String,
    /// The first version without it.
    pub(crate) gone: usize,
}

/// The versions of the chain: the first at the start, then one for each change.
pub(crate) struct History {
    settings: Settings,
    changes: Vec<(Duration, Change)>,
    versions: Vec<Sandbox>,
    orphans: Vec<Orphan>,
}

impl History {
    pub(crate) fn new(seed: u64, length: Duration) -> Self {
        let settings = Settings {
            seed,
            // The largest of blocks comes while the trace runs: the ninth.
            blocks: 1_015,
            latency: LATENCY..=LATENCY,
            ..Settings::default()
        };
        let changes = changes(seed, length);
        // Each from the start: clones of a sandbox are the same sandbox.
        let version = |n: usize| {
            let sandbox = Sandbox::new(settings.clone());
            for (_, change) in &changes[..n] {
                change.apply(&sandbox);
            }
            sandbox
        };
        let versions: Vec<_> = (0..=changes.len()).map(version).collect();
        let orphans = orphans(&versions);
        Self {
            settings,
            changes,
            versions,
            orphans,
        }
    }

    /// A sandbox at the beginning of this history, for a subject.
    pub(crate) fn sandbox(&self) -> Sandbox {
        Sandbox::new(self.settings.clone())
    }

    pub(crate) fn changes(&self) -> &[(Duration, Change)] {
        &self.changes
    }

    pub(crate) fn orphans(&self) -> &[Orphan] {
        &self.orphans
    }

    /// Which version stands at a moment of the trace.
    pub(crate) fn at(&self, moment: Duration) -> usize {
        self.changes.partition_point(|(at, _)| *at <= moment)
    }

    pub(crate) fn versions(&self) -> &[Sandbox] {
        &self.versions
    }

    /// The answer of a version to a target.
    pub(crate) fn answer(&self, version: usize, target: &str) -> Answer {
        self.versions[version].answer(target)
    }

    /// The same, read as a page.
    pub(crate) fn page(&self, version: usize, target: &str) -> Page {
        Page::read(&self.answer(version, target).body)
    }
}

fn changes(seed: u64, length: Duration) -> Vec<(Duration, Change)> {
    let mut changes = Vec::new();
    let mut reorgs = 0;
    let mut at = BLOCK_EVERY / 2;
    for block in 1.. {
        if at >= length {
            break;
        }
        if block % 3 == 0 {
            changes.push((at - AHEAD, Change::TokensAhead));
        }
        if block % REORG_EVERY == 0 {
            reorgs += 1;
            let depth = 1 + (seed as u32).wrapping_add(reorgs) % DEEPEST;
            if reorgs == 2 {
                changes.push((at - HALF, Change::Rollback(depth)));
                changes.push((at, Change::Apply));
            } else {
                changes.push((at, Change::Reorg(depth)));
            }
        }
        changes.push((at, Change::Block));
        at += BLOCK_EVERY;
    }
    changes.sort_by_key(|(at, _)| *at);
    changes
}

fn orphans(versions: &[Sandbox]) -> Vec<Orphan> {
    let mut orphans = Vec::new();
    for (before, pair) in versions.windows(2).enumerate() {
        let tip = pair[0].tip().height;
        for height in tip - DEEPEST..=tip {
            let Some(hash) = pair[0].hash_at(height) else {
                continue;
            };
            if pair[1].hash_at(height).as_ref() != Some(&hash) {
                let gone = before + 1;
                orphans.push(Orphan { hash, gone });
            }
        }
    }
    orphans
}

/// Stands for a body with its status: equal digests, equal bytes.
pub(crate) type Digest = [u8; 32];

/// The digest of an answer.
pub(crate) fn digest_of(status: u16, body: &[u8]) -> Digest {
    let mut bytes = status.to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, &bytes).as_ref());
    out
}

/// The truth about targets, version by version, computed where it is asked for.
pub(crate) struct Truth<'h> {
    pub(crate) history: &'h History,
    known: HashMap<String, Vec<Option<Digest>>>,
}

impl<'h> Truth<'h> {
    pub(crate) fn new(history: &'h History) -> Self {
        Self {
            history,
            known: HashMap::new(),
        }
    }

    pub(crate) fn digest(&mut self, target: &str, version: usize) -> Digest {
        let versions = match self.known.get_mut(target) {
            Some(versions) => versions,
            None => {
                let none = vec![None; self.history.versions().len()];
                self.known.entry(target.to_owned()).or_insert(none)
            }
        };
        *versions[version].get_or_insert_with(|| {
            let answer = self.history.answer(version, target);
            digest_of(answer.status.as_u16(), &answer.body)
        })
    }
}
