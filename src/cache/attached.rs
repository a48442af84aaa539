//! What ordgate attaches to a stored response: its chain stamp and its page
//! index. The only file of `cache` that names both the store's types and those
//! of `chain` and `pages`.

use std::time::Duration;

use super::metadata::ClientFreshness;
use super::purge::BlockRange;
use super::stored::{Attachment, Stored};
use crate::chain::{ChainStamp, Class};
use crate::pages::Page;

impl ClientFreshness {
    /// The `cache-control` of a finality class.
    pub(crate) fn of_class(class: Class, lifetime: Duration) -> Self {
        match class {
            Class::Final => Self::Immutable(lifetime),
            Class::Recent | Class::Live | Class::Absent => Self::For(lifetime),
        }
    }
}

/// A stored response, with its chain stamp and page index where it has them.
pub type StoredResponse = Stored<Attached>;

/// The chain stamp and the page index of a stored response.
#[derive(Debug, Default)]
pub struct Attached {
    /// Its relation to the chain, on a route in mode `chain`.
    pub(crate) stamp: Option<ChainStamp>,
    /// The index of its page, from which other pages are cut.
    pub(crate) page: Option<Box<Page>>,
}

impl Attachment for Attached {
    fn weight(&self) -> usize {
        let page = self.page.as_ref();
        page.map_or(0, |page| size_of::<Page>() + page.weight())
    }

    fn blocks(&self) -> Option<BlockRange> {
        let stamp = self.stamp.as_ref()?;
        let (lowest, highest) = stamp.heights?;
        Some(BlockRange {
            tip: stamp.tip,
            lowest,
            highest,
        })
    }
}

impl StoredResponse {
    /// Its relation to the chain, on a route in mode `chain`.
    pub(crate) fn stamp(&self) -> Option<&ChainStamp> {
        self.attached.stamp.as_ref()
    }

    /// The index of its page, where its body is one.
    pub(crate) fn page(&self) -> Option<&Page> {
        self.attached.page.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(class: Class, heights: Option<(u32, u32)>) -> Attached {
        Attached {
            stamp: Some(ChainStamp {
                class,
                tip: 1,
                epoch: 5,
                heights,
                is_settled: true,
            }),
            page: None,
        }
    }

    #[test]
    fn a_purge_sees_the_heights_of_the_stamp() {
        let range = BlockRange {
            tip: 1,
            lowest: 7,
            highest: 9,
        };
        let blocks = attached(Class::Recent, Some((7, 9))).blocks();
        assert_eq!(blocks, Some(range));
        assert_eq!(attached(Class::Live, None).blocks(), None);
        assert_eq!(Attached::default().blocks(), None);
    }
}
