//! What an answer contains, as far as the chain is concerned: its content for the
//! finality class, the heights that it mentions, and whether it shows a block to be
//! empty. Pure.

use http::StatusCode;

use crate::cache::key::Key;
use crate::chain::Content;
use crate::pages::{Hash, Page, hash};
use crate::route::Route;
use crate::route::canonical::{BlockReference, block, is_whole_list, page as page_of, segment};

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// The block whose list it requests.
    block: Option<BlockReference>,
    /// The block or transaction that a segment of 64 hex digits identifies.
    hash: Option<Hash>,
    /// Whether it requests a list that is not filtered, from its first item on.
    is_whole_list: bool,
}

impl Subject {
    pub(super) fn of(key: &Key, route: &Route) -> Self {
        let from_start = page_of(key).is_none_or(|(_, offset)| offset == 0);
        let digits = route
            .chain
            .segments
            .hex64
            .and_then(|at| segment(key.target(), at));
        Self {
            block: route
                .chain
                .segments
                .block
                .and_then(|at| block(key.target(), at)),
            hash: digits.and_then(hash),
            is_whole_list: from_start && is_whole_list(key.as_bytes()),
        }
    }

    /// The content of an answer. It is confirmed where each of its items is of the
    /// block or the transaction that was requested: such a list is complete.
    pub(super) fn content(self, status: StatusCode, empty: bool, page: Option<&Page>) -> Content {
        // A block without activity has an empty list. Not found, or any other client
        // error, is no statement about a block.
        if status.is_client_error() {
            return Content::Nothing { block: None };
        }
        if empty {
            let block = match self.block {
                Some(BlockReference::Height(height)) => Some(height),
                Some(BlockReference::Hash(_)) | None => None,
            };
            return Content::Nothing { block };
        }
        let Some(page) = page.filter(|page| page.is_located) else {
            return Content::Other;
        };
        let [only] = &page.blocks[..] else {
            return Content::Other;
        };
        let is_of_block = match self.block {
            Some(BlockReference::Height(height)) => only.height == height,
            Some(BlockReference::Hash(hash)) => only.hash == hash,
            None => false,
        };
        let is_of_hash = || {
            self.hash.is_some_and(|requested| {
                let mut parts = page.txs.iter();
                requested == only.hash || parts.all(|part| part.tx == requested)
            })
        };
        match is_of_block || is_of_hash() {
            true => Content::Confirmed {
                height: only.height,
            },
            false => Content::Other,
        }
    }

    /// The height of the requested block, where the answer shows that its whole list
    /// is empty: if it had items before, it was orphaned.
    pub(super) fn empty_block(self, content: Content, page: Option<&Page>) -> Option<u32> {
        let Content::Nothing { block } = content else {
            return None;
        };
        let is_empty_list = page.is_some_and(|page| page.total == 0);
        block.filter(|_| self.is_whole_list && is_empty_list)
    }
}

/// The lowest and the highest height that an answer mentions: of its items' blocks,
/// else of the requested block, else of a token's deploy.
pub(super) fn heights(
    content: Content,
    deploy_height: Option<u32>,
    page: Option<&Page>,
) -> Option<(u32, u32)> {
    let mentioned = page.map_or(&[][..], |page| &page.blocks).iter();
    let lowest = mentioned.clone().map(|block| block.height).min();
    let highest = mentioned.map(|block| block.height).max();
    if let (Some(lowest), Some(highest)) = (lowest, highest) {
        return Some((lowest, highest));
    }
    let height = match content {
        Content::Nothing { block } => block,
        Content::Confirmed { height } => Some(height),
        Content::Other => deploy_height,
    }?;
    Some((height, height))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::BodyIndex;

    /// A page with an item in each of these blocks, by transaction.
    fn body(items: &[(u32, u8)]) -> BodyIndex {
        let item = |(height, tx): &(u32, u8)| {
            format!(
                r#"{{"location":{{"block_hash":"{height:064x}","block_height":{height},"tx_id":"{tx:064x}"}}}}"#
            )
        };
        let total = items.len();
        let items: Vec<_> = items.iter().map(item).collect();
        let items = items.join(",");
        let page = format!(r#"{{"limit":60,"offset":0,"total":{total},"results":[{items}]}}"#);
        BodyIndex::read(page.as_bytes()).unwrap()
    }

    fn number(number: u32) -> Hash {
        hash(&format!("{number:064x}")).unwrap()
    }

    const NONE: Subject = Subject {
        block: None,
        hash: None,
        is_whole_list: true,
    };

    fn by_height(height: u32) -> Subject {
        Subject {
            block: Some(BlockReference::Height(height)),
            ..NONE
        }
    }

    fn by_hash(of: u32) -> Subject {
        Subject {
            block: Some(BlockReference::Hash(number(of))),
            hash: Some(number(of)),
            ..NONE
        }
    }

    fn transaction(tx: u32) -> Subject {
        Subject {
            hash: Some(number(tx)),
            ..NONE
        }
    }

    #[test]
    fn a_list_of_the_requested_block_or_transaction_is_confirmed() {
        let confirmed = |height| Content::Confirmed { height };
        let nothing = |block| Content::Nothing { block };
        for (subject, items, content) in [
            (by_height(7), &[(7, 1), (7, 2)][..], confirmed(7)),
            (by_hash(7), &[(7, 1), (7, 2)], confirmed(7)),
            (transaction(1), &[(7, 1), (7, 1)], confirmed(7)),
            // Another block, another transaction, or several.
            (by_height(8), &[(7, 1)], Content::Other),
            (by_hash(8), &[(7, 1)], Content::Other),
            (by_height(7), &[(7, 1), (8, 2)], Content::Other),
            (transaction(1), &[(7, 1), (7, 2)], Content::Other),
            // A list that spans blocks.
            (NONE, &[(7, 1)], Content::Other),
            (by_height(7), &[], nothing(Some(7))),
            (by_hash(7), &[], nothing(None)),
            (NONE, &[], nothing(None)),
        ] {
            let body = body(items);
            let page = body.page.as_deref();
            let actual = subject.content(StatusCode::OK, body.empty, page);
            assert_eq!(actual, content, "{subject:?} {items:?}");
            let refused = subject.content(StatusCode::NOT_FOUND, body.empty, None);
            assert_eq!(refused, nothing(None), "a refusal names no block");
        }
    }

    #[test]
    fn only_the_whole_list_of_a_block_shows_that_it_is_empty() {
        let empty = body(&[]);
        let page = empty.page.as_deref();
        let nothing = Content::Nothing { block: Some(7) };
        assert_eq!(by_height(7).empty_block(nothing, page), Some(7));
        assert_eq!(by_height(7).empty_block(nothing, None), None);
        let part = Subject {
            is_whole_list: false,
            ..by_height(7)
        };
        assert_eq!(part.empty_block(nothing, page), None);
        assert_eq!(by_height(7).empty_block(Content::Other, page), None);
    }

    #[test]
    fn heights_are_those_of_items_then_of_the_request_then_of_the_deploy() {
        let page = body(&[(9, 1), (7, 1), (8, 2)]).page;
        let nothing = Content::Nothing { block: Some(5) };
        assert_eq!(
            heights(Content::Other, Some(3), page.as_deref()),
            Some((7, 9))
        );
        assert_eq!(heights(nothing, Some(3), None), Some((5, 5)));
        assert_eq!(heights(Content::Other, Some(3), None), Some((3, 3)));
        assert_eq!(heights(Content::Other, None, None), None);
        assert_eq!(
            heights(Content::Nothing { block: None }, Some(3), None),
            None
        );
    }
}
