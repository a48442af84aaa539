//! Which windows there are, and which belong together.

use super::*;

#[test]
fn which_windows_a_page_overlaps() {
    let most = MOST_OFFSET;
    let rows: &[(u64, u64, u64, &[u64])] = &[
        (0, 1, 60, &[0]),
        (0, 60, 60, &[0]),
        (0, 61, 60, &[0, 60]),
        (59, 1, 60, &[0]),
        (59, 2, 60, &[0, 60]),
        (60, 60, 60, &[60]),
        (119, 60, 60, &[60, 120]),
        (5, 3, 1, &[5, 6, 7]),
        (5, 3, 10_000, &[0]),
        // A limit or a size of 0 has no windows.
        (5, 0, 60, &[]),
        (5, 3, 0, &[]),
        // No window lies above the largest offset.
        (most, 60, 60, &[most - most % 60]),
        (most, 1 << 32, 1 << 60, &[0]),
        (most - 1, 60, 1, &[most - 1, most]),
        (u64::MAX, u64::MAX, 60, &[]),
        (0, u64::MAX, u64::MAX, &[0]),
    ];
    for (offset, limit, size, expected) in rows {
        let found: Vec<_> = windows(*offset, *limit, *size).collect();
        assert_eq!(found, *expected, "{offset} {limit} {size}");
    }
    assert_eq!(windows(most, 1 << 32, 1).count(), 1);
    let many = windows(59, 1 << 32, 60).take(3);
    assert_eq!(many.collect::<Vec<_>>(), [0, 60, 120]);
}

#[test]
fn which_pages_are_the_window_requested() {
    let page = |limit: u64, offset: u64, total: u64, items: usize| {
        let items = vec!["1"; items].join(",");
        read(&format!(
            r#"{{"limit":{limit},"offset":{offset},"total":{total},"results":[{items}]}}"#
        ))
    };
    for (page, offset, is_window) in [
        (page(60, 0, 130, 60), 0, true),
        (page(60, 120, 130, 10), 120, true),
        (page(60, 60, 120, 60), 60, true),
        (page(60, 0, 1, 1), 0, true),
        (page(60, 0, 0, 0), 0, true),
        (page(60, 180, 0, 0), 180, true),
        (page(20, 0, 130, 20), 0, false),
        (page(60, 0, 130, 60), 60, false),
        (page(60, 0, 130, 20), 0, false),
        (page(60, 0, 130, 61), 0, false),
        (page(60, 120, 130, 9), 120, false),
        (page(60, 60, 130, 0), 60, false),
        (page(60, 0, 0, 1), 0, false),
        (page(60, 180, 130, 1), 180, false),
        (page(60, 180, 130, 0), 180, false),
        (page(60, 180, 180, 0), 180, false),
    ] {
        assert_eq!(page.is_window(offset, 60), is_window, "{page:?}");
    }
}

#[test]
fn which_windows_can_be_of_one_moment() {
    let style = Style::reference();
    let list = |height, block, total: usize| -> Vec<_> {
        (0..total)
            .map(|at| item(height, block, 1, at, ""))
            .collect()
    };
    let page = |list: &[String], offset| style.page(list, offset, 10);
    let (a, longer) = (list(7, 1, 25), list(7, 1, 26));
    let (moved, orphan) = (list(8, 1, 25), list(7, 2, 25));
    let mixed = [list(7, 1, 15), list(6, 9, 10)].concat();
    let nowhere = vec!["{}".to_owned(); 25];
    let rows: Vec<(Vec<String>, bool)> = vec![
        (vec![], true),
        (vec![page(&a, 0)], true),
        (vec![page(&a, 0), page(&a, 10)], true),
        (vec![page(&a, 0), page(&a, 10), page(&a, 20)], true),
        (vec![page(&a, 20), page(&a, 30)], true),
        (vec![page(&a, 30), page(&a, 40)], true),
        (vec![page(&a, 0), page(&nowhere, 10)], true),
        (vec![page(&nowhere, 0), page(&nowhere, 10)], true),
        (vec![page(&a, 0), page(&longer, 10)], false),
        (vec![page(&a, 0), page(&moved, 10)], false),
        (vec![page(&a, 0), page(&orphan, 10)], false),
        (
            vec![page(&a, 0), page(&nowhere, 10), page(&orphan, 20)],
            false,
        ),
        // Between an orphaned block's going and its heir's coming the list is
        // empty; then what is past the end lies before it.
        (vec![page(&a, 0), page(&[], 10)], false),
        (vec![page(&[], 0), page(&a, 10)], false),
        (vec![page(&[], 0), page(&[], 10)], true),
        // A list that spans blocks.
        (vec![page(&mixed, 10)], false),
        (vec![page(&mixed, 0), page(&mixed, 10)], false),
        (vec![page(&mixed, 0), page(&mixed, 20)], false),
    ];
    for (bodies, expected) in rows {
        let pages: Vec<_> = bodies.iter().map(|body| read(body)).collect();
        let windows = all(&pages);
        let of_one_moment = are_consistent(&windows) && of_one_block(&windows);
        assert_eq!(of_one_moment, expected, "{bodies:?}");
        let offset = pages.first().map_or(0, |page| page.offset);
        if !are_consistent(&windows) {
            assert_eq!(cut_page(&windows, offset, 20), None);
        }
    }
}

#[test]
fn which_windows_show_the_end_of_their_list() {
    let rows = [
        (BLOCK_PAGE, 5, true),
        (BLOCK_PAGE, 4, false),
        (BLOCK_PAGE, u64::MAX, true),
        (PAST_END, 1000, true),
        (PAST_END, 1001, true),
        (PAST_END, 999, false),
        (r#"{"limit":20,"offset":0,"total":0,"results":[]}"#, 0, true),
        // No window of an upstream whose pages can be cut.
        (
            r#"{"limit":20,"offset":0,"total":9,"results":[]}"#,
            9,
            false,
        ),
    ];
    for (body, offset, expected) in rows {
        let page = read(body);
        assert_eq!(page.ends_before(offset), expected, "{body} {offset}");
        let past = format!(r#"{{"limit":60,"offset":{offset},"total":0,"results":[]}}"#);
        let cut = text(cut_page(&[&page], offset, 60));
        match expected {
            true => assert_eq!(cut, Some(past)),
            false => assert_ne!(cut, Some(past)),
        }
    }
}

proptest! {
    /// Windows of two moments are told apart by their totals or their blocks.
    #[test]
    fn windows_of_two_moments_are_told_apart(
        lengths in collection::vec(1_usize..10, 2..20),
        more in 1_usize..10,
        other in option::of(select(vec![(7, 2), (8, 1)])),
        size in 1_u64..10,
        at in any::<Index>(),
    ) {
        let before = List::new(&lengths, "").items;
        let after = match other {
            None => List::new(&[&lengths[..], &[more]].concat(), "").items,
            Some((height, block)) => {
                (0..before.len()).map(|event| item(height, block, 0, event, "")).collect()
            }
        };
        let style = Style::reference();
        let total = before.len() as u64;
        let offsets: Vec<_> = windows(0, total, size).collect();
        prop_assume!(offsets.len() > 1);
        let mut bodies: Vec<_> = offsets.iter().map(|at| style.page(&before, *at, size)).collect();
        let at = at.index(offsets.len());
        bodies[at] = style.page(&after, offsets[at], size);
        let pages: Vec<_> = bodies.iter().map(|body| read(body)).collect();
        let windows = all(&pages);
        prop_assert!(!(are_consistent(&windows) && of_one_block(&windows)));
        prop_assert!(other.is_some() || cut_page(&windows, 0, total).is_none());
        prop_assert!(find_run(&windows, &numbered(0)).is_none());
    }
}
