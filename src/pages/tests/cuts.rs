//! Pages that are cut from windows.

use super::*;

#[test]
fn no_page_is_made_of_windows_that_do_not_contain_it() {
    let block = List::new(&[30], "");
    let style = Style::reference();
    let bodies = style.windows(&block.items, [0, 10, 20, 30].into_iter(), 10);
    let all = bodies.windows();
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
    assert_eq!(cut_page(&[Window::new(short, &page)], 0, 10), None);
}

proptest! {
    /// A page that is cut is the page that the upstream gives: as a JSON value,
    /// and item by item; where the upstream writes no blanks between items,
    /// byte for byte.
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
        let bodies = style.windows(&block.items, touched.iter().copied(), size);
        for ((_, page), at) in bodies.0.iter().zip(&touched) {
            prop_assert_eq!(check_window(page, *at, size), Ok(()));
            prop_assert!(page.is_located());
            prop_assert!(page.blocks().len() <= 1);
        }
        let all = bodies.windows();
        prop_assert!(are_consistent(&all));
        let cut = text(cut_page(&all, offset, limit)).unwrap();
        if style.comma == "," {
            prop_assert_eq!(&cut, &expected);
        }
        prop_assert_eq!(value(&cut), value(&expected));
        prop_assert_eq!(items(&cut), items(&expected));
        let past = all.iter().any(|window| ends_before(*window, offset));
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
