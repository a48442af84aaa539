//! What an answer contains, as far as the chain is concerned: its content for the
//! finality class, and the heights that it mentions. Pure.

use http::StatusCode;

use crate::chain::Content;
use crate::pages::{Hash, Page};
use crate::route::canonical::BlockReference;

/// The content of an answer to a request for a block's list, or for what a segment of 64 hex
/// digits identifies. It is confirmed where each of its items is of the block or the
/// transaction that was requested: such a list is complete.
pub(super) fn content(
    (block, hash): (Option<BlockReference>, Option<Hash>),
    status: StatusCode,
    is_empty: bool,
    page: Option<&Page>,
) -> Content {
    // A block without activity has an empty list. Not found, or any other client
    // error, is no statement about a block.
    if status.is_client_error() {
        return Content::Nothing { block: None };
    }
    if is_empty {
        let block = match block {
            Some(BlockReference::Height(height)) => Some(height),
            Some(BlockReference::Hash(_)) | None => None,
        };
        return Content::Nothing { block };
    }
    let page = page.filter(|page| page.is_located);
    let Some((page, [only])) = page.map(|page| (page, &page.blocks[..])) else {
        return Content::Other;
    };
    let is_of_block = match block {
        Some(BlockReference::Height(height)) => only.height == height,
        Some(BlockReference::Hash(hash)) => only.hash == hash,
        None => false,
    };
    let is_of_hash = |hash| hash == only.hash || page.txs.iter().all(|part| part.tx == hash);
    match is_of_block || hash.is_some_and(is_of_hash) {
        true => Content::Confirmed {
            height: only.height,
        },
        false => Content::Other,
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
    use crate::pages::{BodyIndex, hash};

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

    type Subject = (Option<BlockReference>, Option<Hash>);

    const NONE: Subject = (None, None);

    fn by_height(height: u32) -> Subject {
        (Some(BlockReference::Height(height)), None)
    }

    fn by_hash(of: u32) -> Subject {
        (Some(BlockReference::Hash(number(of))), Some(number(of)))
    }

    fn transaction(tx: u32) -> Subject {
        (None, Some(number(tx)))
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
            let actual = super::content(subject, StatusCode::OK, body.empty, page);
            assert_eq!(actual, content, "{subject:?} {items:?}");
            let refused = super::content(subject, StatusCode::NOT_FOUND, body.empty, None);
            assert_eq!(refused, nothing(None), "a refusal names no block");
        }
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
