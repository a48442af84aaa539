//! Transactions that are cut from their block's windows.

use super::*;

#[test]
fn a_recorded_transaction_is_sliced_from_its_block() {
    let page = read(BLOCK_PAGE);
    let window = Window::new(BLOCK_PAGE, &page);
    let etching = read(ETCHING_PAGE);
    let tx = etching.runs()[0].tx;
    let cut = text(cut_transaction_page(&[window], &tx, 0, 20));
    assert_eq!(cut.as_deref(), Some(ETCHING_PAGE));
    let past = text(cut_transaction_page(&[window], &tx, 2, 60));
    let expected = r#"{"limit":60,"offset":2,"total":0,"results":[]}"#;
    assert_eq!(past.as_deref(), Some(expected));
    let whole = Edges {
        before: false,
        after: false,
    };
    assert_eq!(open_edges(window, &tx), Some(whole));
    assert_eq!(cut_transaction_page(&[window], &tx, 0, 0), None);
    // Absence is not inferred.
    let absent = hash(TX).unwrap();
    assert_eq!(cut_transaction_page(&[window], &absent, 0, 20), None);
    assert_eq!(cut_transaction_page(&[window], &absent, 50, 20), None);
    assert_eq!(open_edges(window, &absent), None);
    // Nor what lies beyond the edges.
    let page = read(TRANSACTION_PAGE);
    let window = Window::new(TRANSACTION_PAGE, &page);
    assert_eq!(cut_transaction_page(&[window], &absent, 0, 20), None);
    let both = Edges {
        before: true,
        after: true,
    };
    assert_eq!(open_edges(window, &absent), Some(both));
    assert_eq!(cut_transaction_page(&[], &absent, 0, 20), None);
}

#[test]
fn a_transaction_without_one_certain_run_has_no_page() {
    let style = Style::reference();
    let one = |tx, event| item(7, 1, tx, event, "");
    let cases = [
        // In two places.
        vec![one(1, 0), one(2, 0), one(1, 1), one(3, 0)],
        // Beside an item that may be its own.
        vec![one(2, 0), one(1, 0), "{}".to_owned(), one(3, 0)],
        // In a list that is not one block's.
        vec![one(2, 0), one(1, 0), item(6, 5, 3, 0, ""), one(3, 0)],
    ];
    for list in cases {
        for size in [2, 4, 10] {
            let offsets = windows(0, list.len() as u64, size);
            let bodies = style.windows(&list, offsets, size);
            let cut = cut_transaction_page(&bodies.windows(), &numbered(1), 0, 20);
            assert_eq!(cut, None, "{list:?}");
        }
    }
    // Where the total is less than what is there.
    let body = Style::reference().page(&[one(2, 0), one(1, 0), one(3, 0)], 0, 3);
    let body = body.replace(r#""total":3"#, r#""total":2"#);
    let page = read(&body);
    let cut = cut_transaction_page(&[Window::new(&body, &page)], &numbered(1), 0, 20);
    assert_eq!(cut, None);
    // From windows that are no neighbours.
    let list: Vec<_> = (1..7).map(|tx| one(tx, 0)).collect();
    let bodies = style.windows(&list, [0, 2, 4, 6].into_iter(), 2);
    let all = bodies.windows();
    let cut = |windows: &[Window<'_>]| cut_transaction_page(windows, &numbered(1), 0, 20).is_some();
    assert!(cut(&all) && cut(&all[..1]) && cut(&[all[0], all[1]]));
    assert!(!cut(&[all[0], all[2]]) && !cut(&[all[1], all[0]]) && !cut(&[all[0], all[0]]));
}

proptest! {
    /// From any windows of a block's list there is either no page of a
    /// transaction, or the one that the upstream gives; and there is one where
    /// no neighbour is missing.
    #[test]
    fn a_sliced_transaction_is_the_upstreams(
        block in blocks(),
        style in styles(),
        size in sizes(),
        offset in prop_oneof![0_u64..5, offsets()],
        limit in limits(),
        first in any::<Index>(),
        count in 1_usize..4,
        which in any::<Index>(),
    ) {
        prop_assume!(!block.runs.is_empty());
        // One more, past the end.
        let all = style.windows(&block.items, windows(0, block.len() + size, size), size);
        let all = all.windows();
        let first = first.index(all.len());
        let some = &all[first..(first + count).min(all.len())];
        let at = which.index(block.runs.len());
        let (tx, run) = (numbered(u32::try_from(at).unwrap()), block.runs[at].clone());
        let expected = style.page(&block.items[run.clone()], offset, limit);
        let check = |cut: Option<Vec<u8>>| {
            let cut = text(cut).unwrap();
            if style.comma == "," {
                prop_assert_eq!(&cut, &expected);
            }
            prop_assert_eq!(value(&cut), value(&expected));
            prop_assert_eq!(items(&cut), items(&expected));
            Ok(())
        };
        check(cut_transaction_page(&all, &tx, offset, limit))?;
        let cut = cut_transaction_page(some, &tx, offset, limit);
        let low = some[0].page.offset;
        let high = some.iter().filter(|window| !window.page.is_empty());
        let high = high.map(|window| window.page.offset + window.page.len() as u64).max();
        let high = high.unwrap_or(low);
        let (start, end) = (run.start as u64, run.end as u64);
        let begins = start > low || start == 0 && low == 0;
        let ends = end < high || end == block.len() && high == end;
        prop_assert_eq!(cut.is_some(), begins && ends);
        if cut.is_some() {
            check(cut)?;
        }
        // The way that it is asked: from one window outwards.
        for (at, window) in all.iter().enumerate() {
            let Some(edges) = open_edges(*window, &tx) else {
                continue;
            };
            let (mut low, mut high, mut low_edges, mut high_edges) = (at, at, edges, edges);
            while low_edges.before && low > 0 {
                match open_edges(all[low - 1], &tx) {
                    Some(edges) => (low, low_edges) = (low - 1, edges),
                    None => break,
                }
            }
            while high_edges.after {
                match open_edges(all[high + 1], &tx) {
                    Some(edges) => (high, high_edges) = (high + 1, edges),
                    None => break,
                }
            }
            let low = low - usize::from(low_edges.before);
            let high = high + usize::from(high_edges.after);
            check(cut_transaction_page(&all[low..=high], &tx, offset, limit))?;
        }
        let absent = numbered(u32::MAX);
        prop_assert!(cut_transaction_page(&all, &absent, offset, limit).is_none());
    }
}
