//! Pages that are cut from windows.

use super::*;

/// A transaction's page, from windows that contain all of it.
fn cut_transaction(windows: &[&Page], tx: &Hash, offset: u64, limit: u64) -> Option<Box<Page>> {
    match find_run(windows, tx)? {
        Run::Whole(run) => cut_run(windows, &run, offset, limit),
        Run::Before | Run::After => None,
    }
}

#[test]
fn no_page_is_made_of_windows_that_do_not_contain_it() {
    let block = List::new(&[30], "");
    let style = Style::reference();
    let pages = style.windows(&block.items, [0, 10, 20, 30], 10);
    let all = all(&pages);
    for (windows, offset, limit) in [
        (&all[..0], 0, 10),
        (&all[..1], 0, 11),
        (&all[..1], 10, 1),
        (&all[1..], 9, 2),
        (&all[3..], 29, 1),
        (&[all[0], all[2]], 0, 30),
        (&[all[1], all[0]], 0, 20),
        (&all[..], 0, 0),
        (&all[..], 30, 0),
    ] {
        assert_eq!(cut_page(windows, offset, limit), None, "{offset} {limit}");
    }
    // Windows beyond what is needed do no harm.
    let cut = cut_page(&all, 12, 3).unwrap();
    assert_eq!(text(Some(cut)), Some(style.page(&block.items, 12, 3)));
    // A page that is shorter than its total makes it.
    let short = r#"{"limit":10,"offset":0,"total":9,"results":[1,2]}"#;
    let page = read(short);
    assert_eq!(cut_page(&[&page], 0, 10), None);
}

proptest! {
    /// A page that is cut is the page that the upstream gives: as a JSON value, and item by
    /// item; where the upstream writes as the reference does, byte for byte.
    #[test]
    fn a_sliced_page_is_the_upstreams(
        block in blocks(),
        style in styles(),
        size in sizes(),
        offset in offsets(),
        limit in limits(),
    ) {
        let expected = style.page(&block.items, offset, limit);
        // As far as the list goes, but the first in any case.
        let touched = windows(offset, limit, size);
        let touched = touched.enumerate().take_while(|(nth, at)| *nth == 0 || *at < block.len());
        let touched: Vec<_> = touched.map(|(_, at)| at).collect();
        let pages = style.windows(&block.items, touched.iter().copied(), size);
        for (page, at) in pages.iter().zip(&touched) {
            prop_assert!(page.is_window(*at, size));
            prop_assert!(page.is_located);
            prop_assert!(page.blocks.len() <= 1);
        }
        let all = all(&pages);
        prop_assert!(are_consistent(&all));
        let cut = text(cut_page(&all, offset, limit)).unwrap();
        if style.is_reference() {
            prop_assert_eq!(&cut, &expected);
        }
        prop_assert_eq!(value(&cut), value(&expected));
        prop_assert_eq!(items(&cut), items(&expected));
        let past = all.iter().any(|window| window.ends_before(offset));
        prop_assert_eq!(past, offset >= block.len());
        // Without one of the windows there is either no page, or the same.
        for at in 0..all.len() {
            let mut fewer = all.clone();
            fewer.remove(at);
            let cut = cut_page(&fewer, offset, limit);
            prop_assert!(cut.is_none());
        }
    }
}

#[test]
fn a_recorded_transaction_is_sliced_from_its_block() {
    let page = read(BLOCK_PAGE);
    let etching = read(ETCHING_PAGE);
    let tx = etching.txs[0].tx;
    let cut = text(cut_transaction(&[&page], &tx, 0, 20));
    assert_eq!(cut.as_deref(), Some(ETCHING_PAGE));
    let past = text(cut_transaction(&[&page], &tx, 2, 60));
    let expected = r#"{"limit":60,"offset":2,"total":0,"results":[]}"#;
    assert_eq!(past.as_deref(), Some(expected));
    assert_eq!(find_run(&[&page], &tx), Some(Run::Whole(3..5)));
    assert_eq!(cut_transaction(&[&page], &tx, 0, 0), None);
    // Absence is not inferred.
    let absent = hash(TX).unwrap();
    assert_eq!(cut_transaction(&[&page], &absent, 0, 20), None);
    assert_eq!(cut_transaction(&[&page], &absent, 50, 20), None);
    assert_eq!(find_run(&[&page], &absent), None);
    // Nor what lies beyond the edges.
    let page = read(TRANSACTION_PAGE);
    assert_eq!(cut_transaction(&[&page], &absent, 0, 20), None);
    assert_eq!(find_run(&[&page], &absent), Some(Run::Before));
    assert_eq!(cut_transaction(&[], &absent, 0, 20), None);
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
            let pages = style.windows(&list, offsets, size);
            let cut = cut_transaction(&all(&pages), &numbered(1), 0, 20);
            assert_eq!(cut, None, "{list:?}");
        }
    }
    // From windows that are no neighbours.
    let list: Vec<_> = (1..7).map(|tx| one(tx, 0)).collect();
    let pages = style.windows(&list, [0, 2, 4, 6], 2);
    let all = all(&pages);
    let cut = |windows: &[&Page]| cut_transaction(windows, &numbered(1), 0, 20).is_some();
    assert!(cut(&all[..3]) && cut(&all[..1]) && cut(&[all[0], all[1]]));
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
        let pages = style.windows(&block.items, windows(0, block.len(), size), size);
        let all = all(&pages);
        let first = first.index(all.len());
        let some = &all[first..(first + count).min(all.len())];
        let at = which.index(block.runs.len());
        let (tx, run) = (numbered(u32::try_from(at).unwrap()), block.runs[at].clone());
        let expected = style.page(&block.items[run.clone()], offset, limit);
        let check = |cut: Option<Box<Page>>| {
            let cut = text(cut).unwrap();
            if style.is_reference() {
                prop_assert_eq!(&cut, &expected);
            }
            prop_assert_eq!(value(&cut), value(&expected));
            prop_assert_eq!(items(&cut), items(&expected));
            Ok(())
        };
        check(cut_transaction(&all, &tx, offset, limit))?;
        let cut = cut_transaction(some, &tx, offset, limit);
        let low = some[0].offset;
        let high = some.iter().filter(|window| !window.is_empty());
        let high = high.map(|window| window.offset + window.len() as u64).max();
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
            if !window.txs.iter().any(|part| part.tx == tx) {
                continue;
            }
            let (mut low, mut high) = (at, at);
            loop {
                match find_run(&all[low..=high], &tx).unwrap() {
                    Run::Whole(run) => {
                        check(cut_run(&all[low..=high], &run, offset, limit))?;
                        break;
                    }
                    Run::Before => low -= 1,
                    Run::After => high += 1,
                }
            }
        }
        let absent = numbered(u32::MAX);
        prop_assert!(cut_transaction(&all, &absent, offset, limit).is_none());
    }
}
