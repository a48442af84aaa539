//! The tip's tag, and what the tags of answers mean. With the reference upstream,
//! every answer has the tip's tag as its `etag`; other upstreams may tag each
//! resource.

use std::collections::VecDeque;

use super::epochs::push_bounded;
use crate::pages::{Hash, hash};

pub(super) type Tag = Box<[u8]>;

/// Changed tags that the status path did not confirm, after which tags are taken
/// to be those of resources.
pub(super) const MOST_FALSE_ALARMS: u8 = 3;
const EARLIER: usize = 64;

/// The tip's tag and the tags before it.
#[derive(Debug, Default)]
pub(super) struct TipTags {
    current: Option<Tag>,
    /// Tags of earlier tips, newest last.
    earlier: VecDeque<Tag>,
    meaning: Meaning,
}

/// What the tags of answers are tags of.
#[derive(Clone, Copy, Debug, Default)]
enum Meaning {
    #[default]
    Unknown,
    /// The tip: an answer has borne the tag of the status path. So many changed
    /// tags since were not confirmed by it.
    Tip { false_alarms: u8 },
    /// Each resource has its own: they change without the tip.
    Resource,
}

/// What the tag of an answer shows of the tip.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TagSignal {
    /// Nothing.
    None,
    /// The tip is unchanged.
    SameTip,
    /// There is a new tip.
    NewTip,
    /// An earlier tip than the present one.
    EarlierTip,
}

impl TipTags {
    /// The tip's tag.
    pub(super) fn current(&self) -> Option<&[u8]> {
        self.current.as_deref()
    }

    /// Whether the tags of answers are those of the tip.
    pub(super) const fn are_of_tip(&self) -> bool {
        matches!(self.meaning, Meaning::Tip { .. })
    }

    /// Whether each answer bears the tip's hash: then no change of the chain goes
    /// unnoticed.
    pub(super) fn are_tip_hashes(&self) -> bool {
        self.are_of_tip() && self.current().is_some_and(|tag| as_hash(tag).is_some())
    }

    /// What the tag of an answer shows of the tip. `is_present`: its request began
    /// in the present epoch.
    pub(super) fn compare(&mut self, tag: Option<&[u8]>, is_present: bool) -> TagSignal {
        let (Some(tag), Some(current)) = (tag, self.current()) else {
            return TagSignal::None;
        };
        let is_same = tag == current;
        match self.meaning {
            Meaning::Resource => TagSignal::None,
            Meaning::Unknown if is_same => {
                self.meaning = Meaning::Tip { false_alarms: 0 };
                TagSignal::SameTip
            }
            Meaning::Unknown => TagSignal::None,
            Meaning::Tip { .. } if is_same => TagSignal::SameTip,
            // The tip has changed since the request began: this may be an older one.
            Meaning::Tip { .. } if !is_present => TagSignal::None,
            // The chain was rolled back, or another server answers that is behind.
            // The status path shows which.
            Meaning::Tip { .. } if self.earlier.iter().any(|earlier| **earlier == *tag) => {
                TagSignal::EarlierTip
            }
            Meaning::Tip { .. } => TagSignal::NewTip,
        }
    }

    /// Sets the tip's tag.
    pub(super) fn set(&mut self, tag: &[u8]) {
        if self.current() == Some(tag) {
            return;
        }
        self.earlier.retain(|earlier| **earlier != *tag);
        if let Some(before) = self.current.replace(tag.into()) {
            push_bounded(&mut self.earlier, before, EARLIER);
        }
    }

    /// Counts a changed tag that the status path did not confirm.
    pub(super) fn count_false_alarm(&mut self) {
        if let Meaning::Tip { false_alarms } = &mut self.meaning {
            *false_alarms += 1;
            if *false_alarms >= MOST_FALSE_ALARMS {
                self.meaning = Meaning::Resource;
            }
        }
    }
}

/// A tag without its weakness indicator and its quotes (RFC 9110 §8.8.3).
pub(super) fn bare(tag: &[u8]) -> &[u8] {
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    tag.strip_prefix(b"\"")
        .and_then(|tag| tag.strip_suffix(b"\""))
        .unwrap_or(tag)
}

/// The block hash that a tag is, if it is one.
pub(super) fn as_hash(tag: &[u8]) -> Option<Hash> {
    hash(std::str::from_utf8(tag).ok()?)
}
