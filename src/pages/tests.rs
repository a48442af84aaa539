//! What pages consist of, and what is cut from them: tables from what the
//! reference upstream was seen to answer, and a model of how it cuts a list.

use std::ops::Range;

use proptest::prelude::{Just, Strategy, any};
use proptest::sample::{Index, select, subsequence};
use proptest::{
    collection, option, prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest,
};
use serde_json::Value;

use super::*;

const BLOCK: &str = "0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5";
const TX: &str = "cece8a9cecfb6c7e7ee4f3346d5e2544138bfb6e33bec6042a17333a4d3180b0";

/// `GET /runes/v1/transactions/{tx_id}/activity?limit=2&offset=1`, as recorded.
const TRANSACTION_PAGE: &str = r#"{"limit":2,"offset":1,"total":4,"results":[{"rune":{"id":"840000:3","number":1,"name":"ZZZZZFEHUZZZZZ","spaced_name":"Z•Z•Z•Z•Z•FEHU•Z•Z•Z•Z•Z"},"operation":"burn","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"cece8a9cecfb6c7e7ee4f3346d5e2544138bfb6e33bec6042a17333a4d3180b0","tx_index":7,"timestamp":1713571767},"address":"bc1q7jd477wc5s88hsvenr0ddtatsw282hfjzg59wz","amount":"0.07"},{"rune":{"id":"840000:3","number":1,"name":"ZZZZZFEHUZZZZZ","spaced_name":"Z•Z•Z•Z•Z•FEHU•Z•Z•Z•Z•Z"},"operation":"send","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"cece8a9cecfb6c7e7ee4f3346d5e2544138bfb6e33bec6042a17333a4d3180b0","tx_index":7,"timestamp":1713571767,"vout":0,"output":"cece8a9cecfb6c7e7ee4f3346d5e2544138bfb6e33bec6042a17333a4d3180b0:0"},"address":"bc1q7jd477wc5s88hsvenr0ddtatsw282hfjzg59wz","receiver_address":"bc1pgdrveee2v4ez95szaakw5gkd8eennv2dddf9rjdrlt6ch56lzrrsxgvazt","amount":"2.50"}]}"#;

/// `GET /runes/v1/blocks/840000/activity`, as recorded, with the items of one
/// transaction left out.
const BLOCK_PAGE: &str = r#"{"limit":20,"offset":0,"total":5,"results":[{"rune":{"id":"1:0","number":0,"name":"UNCOMMONGOODS","spaced_name":"UNCOMMON•GOODS"},"operation":"burn","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"a2f1a68a3cf7bab14245ba34e6a348b6822aceb4a9ec7ad04a86c2c93ca1a28a","tx_index":9,"timestamp":1713571767},"amount":"1"},{"rune":{"id":"1:0","number":0,"name":"UNCOMMONGOODS","spaced_name":"UNCOMMON•GOODS"},"operation":"receive","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"c44474038d459e40e4714afefa7bf8dae9f9834b22f5e8ec1dd434ecb62b512e","tx_index":5,"timestamp":1713571767,"vout":0,"output":"c44474038d459e40e4714afefa7bf8dae9f9834b22f5e8ec1dd434ecb62b512e:0"},"address":"bc1pgdrveee2v4ez95szaakw5gkd8eennv2dddf9rjdrlt6ch56lzrrsxgvazt","amount":"1"},{"rune":{"id":"1:0","number":0,"name":"UNCOMMONGOODS","spaced_name":"UNCOMMON•GOODS"},"operation":"mint","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"c44474038d459e40e4714afefa7bf8dae9f9834b22f5e8ec1dd434ecb62b512e","tx_index":5,"timestamp":1713571767},"amount":"1"},{"rune":{"id":"840000:3","number":1,"name":"ZZZZZFEHUZZZZZ","spaced_name":"Z•Z•Z•Z•Z•FEHU•Z•Z•Z•Z•Z"},"operation":"receive","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"2bb85f4b004be6da54f766c17c1e855187327112c231ef2ff35ebad0ea67c69e","tx_index":3,"timestamp":1713571767,"vout":1,"output":"2bb85f4b004be6da54f766c17c1e855187327112c231ef2ff35ebad0ea67c69e:1"},"address":"bc1q7jd477wc5s88hsvenr0ddtatsw282hfjzg59wz","amount":"11000000000.00"},{"rune":{"id":"840000:3","number":1,"name":"ZZZZZFEHUZZZZZ","spaced_name":"Z•Z•Z•Z•Z•FEHU•Z•Z•Z•Z•Z"},"operation":"etching","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"2bb85f4b004be6da54f766c17c1e855187327112c231ef2ff35ebad0ea67c69e","tx_index":3,"timestamp":1713571767}}]}"#;

/// The etching's own page: `GET /runes/v1/transactions/{tx_id}/activity`.
const ETCHING_PAGE: &str = r#"{"limit":20,"offset":0,"total":2,"results":[{"rune":{"id":"840000:3","number":1,"name":"ZZZZZFEHUZZZZZ","spaced_name":"Z•Z•Z•Z•Z•FEHU•Z•Z•Z•Z•Z"},"operation":"receive","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"2bb85f4b004be6da54f766c17c1e855187327112c231ef2ff35ebad0ea67c69e","tx_index":3,"timestamp":1713571767,"vout":1,"output":"2bb85f4b004be6da54f766c17c1e855187327112c231ef2ff35ebad0ea67c69e:1"},"address":"bc1q7jd477wc5s88hsvenr0ddtatsw282hfjzg59wz","amount":"11000000000.00"},{"rune":{"id":"840000:3","number":1,"name":"ZZZZZFEHUZZZZZ","spaced_name":"Z•Z•Z•Z•Z•FEHU•Z•Z•Z•Z•Z"},"operation":"etching","location":{"block_hash":"0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5","block_height":840000,"tx_id":"2bb85f4b004be6da54f766c17c1e855187327112c231ef2ff35ebad0ea67c69e","tx_index":3,"timestamp":1713571767}}]}"#;

/// `GET /runes/v1/blocks/840001/activity?offset=1000`, as recorded.
const PAST_END: &str = r#"{"limit":20,"offset":1000,"total":0,"results":[]}"#;

fn read(body: &str) -> Page {
    Page::read(body.as_bytes()).unwrap_or_else(|| panic!("{body}"))
}

fn text(body: Option<Vec<u8>>) -> Option<String> {
    body.map(|body| String::from_utf8(body).unwrap())
}

/// Bodies with their pages.
struct Stored(Vec<(String, Page)>);

impl Stored {
    fn new(bodies: impl IntoIterator<Item = String>) -> Self {
        let read = |body: String| (body.clone(), read(&body));
        Self(bodies.into_iter().map(read).collect())
    }

    fn windows(&self) -> Vec<Window<'_>> {
        let window = |(body, page)| Window::new(body, page);
        self.0
            .iter()
            .map(|(body, page)| window((body, page)))
            .collect()
    }
}

impl<'a> Window<'a> {
    fn new(body: &'a str, page: &'a Page) -> Self {
        Self {
            body: body.as_bytes(),
            page,
        }
    }
}

/// The hash that is written as one number.
fn numbered(number: u32) -> Hash {
    hash(&format!("{number:064x}")).unwrap()
}

/// An item of a transaction in a block; `blank` stands between its members.
fn item(height: u32, block: u32, tx: u32, event: usize, blank: &str) -> String {
    format!(
        r#"{{"rune":{{"name":"Ü•]}}\"","number":{event}}},{blank}"location":{blank}{{"block_hash":"{block:064x}","block_height":{height},"tx_id":"{tx:064X}","tx_index":{tx}}},"amount":"0.{event}"}}"#
    )
}

/// How an upstream writes its envelope.
#[derive(Clone, Debug)]
struct Style {
    order: Vec<usize>,
    blank: &'static str,
    comma: &'static str,
}

impl Style {
    /// As the reference upstream does.
    fn reference() -> Self {
        Self {
            order: vec![0, 1, 2, 3],
            blank: "",
            comma: ",",
        }
    }

    /// The page that the reference upstream gives of a list, in this style.
    fn page(&self, list: &[String], offset: u64, limit: u64) -> String {
        let skip = usize::try_from(offset).unwrap().min(list.len());
        let take = usize::try_from(limit).unwrap();
        let items: Vec<_> = list[skip..].iter().take(take).cloned().collect();
        let total = if items.is_empty() { 0 } else { list.len() };
        let Self { blank, comma, .. } = self;
        let members = [
            format!(r#""limit"{blank}:{blank}{limit}"#),
            format!(r#""offset"{blank}:{blank}{offset}"#),
            format!(r#""total"{blank}:{blank}{total}"#),
            format!(r#""results"{blank}:{blank}[{}]"#, items.join(comma)),
        ];
        let members: Vec<_> = self.order.iter().map(|at| &*members[*at]).collect();
        format!("{blank}{{{blank}{}{blank}}}{blank}", members.join(","))
    }

    fn windows(&self, list: &[String], offsets: impl Iterator<Item = u64>, size: u64) -> Stored {
        Stored::new(offsets.map(|offset| self.page(list, offset, size)))
    }
}

/// A block's list, and where each of its transactions stands in it.
#[derive(Clone, Debug)]
struct List {
    items: Vec<String>,
    runs: Vec<Range<usize>>,
}

impl List {
    fn new(lengths: &[usize], blank: &str) -> Self {
        let (mut items, mut runs) = (Vec::new(), Vec::new());
        for (tx, length) in (0..).zip(lengths) {
            let start = items.len();
            items.extend((0..*length).map(|event| item(7, 1, tx, event, blank)));
            runs.push(start..items.len());
        }
        Self { items, runs }
    }

    fn len(&self) -> u64 {
        self.items.len() as u64
    }
}

#[test]
fn a_page_as_recorded() {
    let page = read(BLOCK_PAGE);
    assert_eq!((page.limit, page.offset, page.total), (20, 0, 5));
    assert_eq!((page.len(), page.is_empty()), (5, false));
    let block = Block {
        height: 840_000,
        hash: hash(BLOCK).unwrap(),
    };
    assert_eq!(page.blocks(), [block]);
    assert!(page.is_located());
    let short = |run: &Run| (hex(&run.tx)[..4].to_owned(), run.block, run.first, run.len);
    let runs: Vec<_> = page.runs().iter().map(short).collect();
    let expected = [("a2f1", 0, 0, 1), ("c444", 0, 1, 2), ("2bb8", 0, 3, 2)];
    assert_eq!(
        runs,
        expected.map(|(tx, block, first, len)| (tx.to_owned(), block, first, len))
    );
    let value: Value = serde_json::from_str(BLOCK_PAGE).unwrap();
    for at in 0..5 {
        let item = page.item(BLOCK_PAGE.as_bytes(), at).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(item).unwrap(),
            value["results"][at]
        );
    }
    assert_eq!(page.item(BLOCK_PAGE.as_bytes(), 5), None);
    assert_eq!(page.item(BLOCK_PAGE.as_bytes(), usize::MAX), None);
    assert_eq!(page.item(b"another body", 0), None);
    assert_eq!(page.weight(), 5 * 8 + 3 * 44 + 36);

    let page = read(PAST_END);
    assert_eq!((page.limit, page.offset, page.total), (20, 1000, 0));
    assert!(page.is_empty() && page.is_located());
    assert_eq!(
        (page.blocks(), page.runs(), page.weight()),
        (&[][..], &[][..], 0)
    );
}

#[test]
fn a_page_with_further_members_names_its_blocks_and_is_no_window() {
    let body = BLOCK_PAGE.replacen('{', r#"{"next":[{"limit":7}],"#, 1);
    let (page, plain) = (read(&body), read(BLOCK_PAGE));
    assert_eq!(page.blocks(), plain.blocks());
    assert_eq!((page.total, page.len()), (plain.total, plain.len()));
    assert!(plain.is_plain() && !page.is_plain());
    let checked = check_window(&page, page.offset, page.limit);
    assert_eq!(checked, Err(Unsliceable::Envelope));
}

#[test]
fn what_is_no_page() {
    for body in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"error":"Not found"}"#,
        // Members that are missing, doubled, or spelt in a way that none does.
        r#"{"limit":1,"offset":0,"total":0}"#,
        r#"{"limit":1,"offset":0,"results":[]}"#,
        r#"{"limit":1,"total":0,"results":[]}"#,
        r#"{"offset":0,"total":0,"results":[]}"#,
        r#"{"limit":1,"limit":1,"offset":0,"total":0,"results":[]}"#,
        r#"{"limit":1,"offset":0,"total":0,"results":[],"results":[]}"#,
        r#"{"l\u0069mit":1,"offset":0,"total":0,"results":[]}"#,
        r#"{"Limit":1,"offset":0,"total":0,"results":[]}"#,
        // Numbers that are no `u64`.
        r#"{"limit":-1,"offset":0,"total":0,"results":[]}"#,
        r#"{"limit":1,"offset":-0,"total":0,"results":[]}"#,
        r#"{"limit":1.0,"offset":0,"total":0,"results":[]}"#,
        r#"{"limit":1e1,"offset":0,"total":0,"results":[]}"#,
        r#"{"limit":"1","offset":0,"total":0,"results":[]}"#,
        r#"{"limit":null,"offset":0,"total":0,"results":[]}"#,
        r#"{"limit":01,"offset":0,"total":0,"results":[]}"#,
        r#"{"limit":1,"offset":0,"total":18446744073709551616,"results":[]}"#,
        // Results that are no list.
        r#"{"limit":1,"offset":0,"total":0,"results":null}"#,
        r#"{"limit":1,"offset":0,"total":0,"results":{}}"#,
        r#"{"limit":1,"offset":0,"total":0,"results":"[]"}"#,
        // No JSON.
        r#"{"limit":1,"offset":0,"total":0,"results":[}"#,
        r#"{"limit":1,"offset":0,"total":0,"results":[,]}"#,
        r#"{"limit":1,"offset":0,"total":0,"results":[1,]}"#,
        r#"{"limit":1,"offset":0,"total":0,"results":[]"#,
        r#"{"limit":1,"offset":0,"total":0,"results":[]},"#,
        r#"{"limit":1,"offset":0,"total":0,"results":[]}{}"#,
        "\u{feff}{\"limit\":1,\"offset\":0,\"total\":0,\"results\":[]}",
    ] {
        assert!(Page::read(body.as_bytes()).is_none(), "{body}");
    }
    let latin = b"{\"limit\":1,\"offset\":0,\"total\":1,\"results\":[\"\xe9\"]}";
    assert!(Page::read(latin).is_none());
}

#[test]
fn pages_of_any_style() {
    let largest = format!(
        r#"{{"limit":{0},"offset":{0},"total":{0},"results":[]}}"#,
        u64::MAX
    );
    let page = read(&largest);
    assert_eq!(
        (page.limit, page.offset, page.total),
        (u64::MAX, u64::MAX, u64::MAX)
    );
    let body =
        " {\r\n\t\"results\" : [ 1 , \"]\" ,[ ] ] , \"total\" : 3,\"offset\":0 ,\"limit\":4}\n";
    let page = read(body);
    let items: Vec<_> = (0..3).map(|at| page.item(body.as_bytes(), at)).collect();
    assert_eq!(items, [Some(&b"1"[..]), Some(b"\"]\""), Some(b"[ ]")]);
    // The envelope stays as it was written, and so does what is between items.
    let cut = assemble(&[Window::new(body, &page)], 1, 20);
    let expected =
        " {\r\n\t\"results\" : [\"]\" ,[ ]] , \"total\" : 3,\"offset\":1 ,\"limit\":20}\n";
    assert_eq!(text(cut).as_deref(), Some(expected));
    // What is nested deeply is skipped without recursion.
    let (deep, up) = ("[".repeat(200_000), "]".repeat(200_000));
    let body = format!(r#"{{"limit":1,"offset":0,"total":1,"results":[{deep}{up}]}}"#);
    let page = read(&body);
    assert_eq!(page.item(body.as_bytes(), 0).unwrap().len(), 400_000);
    assert!(!page.is_located());
    let body = format!(r#"{{"limit":1,"offset":0,"total":1,"results":[{{"a":{deep}{up}}}]}}"#);
    assert!(!read(&body).is_located());
    let body = format!(r#"{{"limit":{deep}{up},"offset":0,"total":1,"results":[]}}"#);
    assert!(Page::read(body.as_bytes()).is_none());
}

#[test]
fn what_is_located() {
    let location = |members: &str| format!(r#"{{"location":{{{members}}}}}"#);
    let good = format!(r#""block_hash":"{BLOCK}","block_height":840000,"tx_id":"{TX}""#);
    let upper = good.replace(BLOCK, &BLOCK.to_uppercase());
    let escaped = good.replace("ce8a9c", r"c\u00658a9c");
    let rows = [
        (location(&good), true),
        (location(&upper), true),
        (location(&escaped), true),
        (location(&format!(r#"{good},"vout":{{"vout":[]}}"#)), true),
        (format!(r#"{{"l\u006fcation":{{{good}}}}}"#), true),
        (format!(r#"{{"a\nb":1,"location":{{{good}}}}}"#), true),
        // A member is missing, there twice, or not of its form.
        (location(&good.replace("block_hash", "hash")), false),
        (location(&good.replace("block_height", "height")), false),
        (location(&good.replace("tx_id", "tx")), false),
        (location(&format!("{good},{good}")), false),
        (
            format!(r#"{{"location":{{{good}}},"location":{{{good}}}}}"#),
            false,
        ),
        (location(&good.replace(TX, &TX[1..])), false),
        (location(&good.replace(TX, &TX.replace('b', "g"))), false),
        (location(&good.replace(TX, "")), false),
        (location(&good.replace(TX, r"\ud83e\udde1")), false),
        (location(&good.replace("840000", "\"840000\"")), false),
        (location(&good.replace("840000", "-1")), false),
        (location(&good.replace("840000", "1.0")), false),
        (location(&good.replace("840000", "4294967296")), false),
        (location(&good.replace("840000", "null")), false),
        // No object where there should be one, even if its parts were right.
        (r#"{"location":null}"#.to_owned(), false),
        (
            format!(r#"{{"location":["{BLOCK}",840000,"{TX}"]}}"#),
            false,
        ),
        (format!(r#"[{{{good}}}]"#), false),
        ("{}".to_owned(), false),
        ("null".to_owned(), false),
        ("\"location\"".to_owned(), false),
    ];
    for (item, located) in rows {
        let body = format!(r#"{{"limit":1,"offset":0,"total":1,"results":[{item}]}}"#);
        let page = read(&body);
        assert_eq!(page.is_located(), located, "{item}");
        assert_eq!(page.blocks().len(), usize::from(located), "{item}");
        assert_eq!(page.runs().len(), usize::from(located), "{item}");
        if located {
            assert_eq!(hex(&page.blocks()[0].hash), BLOCK);
            assert_eq!(hex(&page.runs()[0].tx), TX);
        }
    }
}

#[test]
fn runs_and_blocks() {
    let list = [
        item(7, 1, 1, 0, ""),
        item(7, 1, 1, 1, " "),
        // The same transaction in another block is another run.
        item(8, 2, 1, 0, ""),
        // And one that comes again is as well, in a block that is known.
        item(7, 1, 1, 2, ""),
        // An item that stands nowhere parts what is around it.
        "{}".to_owned(),
        item(7, 1, 1, 3, ""),
        // Another block at the height of a former one.
        item(7, 3, 4, 0, ""),
    ];
    let body = Style::reference().page(&list, 0, 60);
    let page = read(&body);
    let blocks: Vec<_> = page.blocks().iter().map(|b| (b.height, b.hash)).collect();
    assert_eq!(
        blocks,
        [(7, numbered(1)), (8, numbered(2)), (7, numbered(3))]
    );
    let runs: Vec<_> = page
        .runs()
        .iter()
        .map(|run| (run.tx, run.block, run.first, run.len))
        .collect();
    assert_eq!(
        runs,
        [
            (numbered(1), 0, 0, 2),
            (numbered(1), 1, 2, 1),
            (numbered(1), 0, 3, 1),
            (numbered(1), 0, 5, 1),
            (numbered(4), 2, 6, 1),
        ]
    );
    assert!(!page.is_located());
}

#[test]
fn which_windows_a_page_touches() {
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
        // None asks for nothing, and windows of nothing are none.
        (5, 0, 60, &[]),
        (5, 3, 0, &[]),
        // The window after the last that can be asked for is left out.
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
fn whether_a_page_is_the_window_asked_for() {
    let page = |limit: u64, offset: u64, total: u64, items: usize| {
        let items = vec!["1"; items].join(",");
        read(&format!(
            r#"{{"limit":{limit},"offset":{offset},"total":{total},"results":[{items}]}}"#
        ))
    };
    let count = |expected, given| Err(Unsliceable::Count { expected, given });
    let rows = [
        (page(60, 0, 130, 60), 0, Ok(())),
        (page(60, 120, 130, 10), 120, Ok(())),
        (page(60, 60, 120, 60), 60, Ok(())),
        (page(60, 0, 1, 1), 0, Ok(())),
        (page(60, 0, 0, 0), 0, Ok(())),
        (page(60, 180, 0, 0), 180, Ok(())),
        (
            page(20, 0, 130, 20),
            0,
            Err(Unsliceable::Limit {
                asked: 60,
                given: 20,
            }),
        ),
        (
            page(60, 0, 130, 60),
            60,
            Err(Unsliceable::Offset {
                asked: 60,
                given: 0,
            }),
        ),
        (page(60, 0, 130, 20), 0, count(60, 20)),
        (page(60, 0, 130, 61), 0, count(60, 61)),
        (page(60, 120, 130, 9), 120, count(10, 9)),
        (page(60, 60, 130, 0), 60, count(60, 0)),
        (page(60, 0, 0, 1), 0, count(0, 1)),
        (page(60, 180, 130, 1), 180, count(0, 1)),
        (
            page(60, 180, 130, 0),
            180,
            Err(Unsliceable::PastEnd { total: 130 }),
        ),
        (
            page(60, 180, 180, 0),
            180,
            Err(Unsliceable::PastEnd { total: 180 }),
        ),
    ];
    for (page, offset, expected) in rows {
        assert_eq!(check_window(&page, offset, 60), expected, "{page:?}");
    }
    let fault = Unsliceable::Limit {
        asked: 60,
        given: 20,
    };
    assert_eq!(
        fault.to_string(),
        "the upstream answered with limit 20 where 60 was asked"
    );
}

#[test]
fn whether_windows_agree() {
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
        let stored = Stored::new(bodies);
        let windows = stored.windows();
        let of_one_moment = agree(&windows) && of_one_block(&windows);
        assert_eq!(of_one_moment, expected, "{:?}", stored.0);
        let offset = stored.0.first().map_or(0, |(_, page)| page.offset);
        if !agree(&windows) {
            assert_eq!(assemble(&stored.windows(), offset, 20), None);
        }
    }
}

#[test]
fn what_ends_before() {
    let rows = [
        (BLOCK_PAGE, 5, true),
        (BLOCK_PAGE, 4, false),
        (BLOCK_PAGE, u64::MAX, true),
        (PAST_END, 1000, true),
        (PAST_END, 1001, true),
        (PAST_END, 999, false),
        (r#"{"limit":20,"offset":0,"total":0,"results":[]}"#, 0, true),
        // No window of a sliceable upstream.
        (
            r#"{"limit":20,"offset":0,"total":9,"results":[]}"#,
            9,
            false,
        ),
    ];
    for (body, offset, expected) in rows {
        let page = read(body);
        let window = Window::new(body, &page);
        assert_eq!(ends_before(window, offset), expected, "{body} {offset}");
        let past = format!(r#"{{"limit":60,"offset":{offset},"total":0,"results":[]}}"#);
        let cut = text(assemble(&[window], offset, 60));
        match expected {
            true => assert_eq!(cut, Some(past)),
            false => assert_ne!(cut, Some(past)),
        }
    }
}

#[test]
fn nothing_is_cut_from_what_does_not_show_it() {
    let block = List::new(&[30], "");
    let style = Style::reference();
    let stored = style.windows(&block.items, [0, 10, 20, 30].into_iter(), 10);
    let all = stored.windows();
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
        assert_eq!(assemble(windows, offset, limit), None, "{offset} {limit}");
    }
    // Windows beyond what is needed do no harm.
    let cut = assemble(&all, 12, 3).unwrap();
    assert_eq!(text(Some(cut)), Some(style.page(&block.items, 12, 3)));
    // A page that is shorter than its total makes it.
    let short = r#"{"limit":10,"offset":0,"total":9,"results":[1,2]}"#;
    let page = read(short);
    assert_eq!(assemble(&[Window::new(short, &page)], 0, 10), None);
}

#[test]
fn a_transaction_as_recorded() {
    let page = read(BLOCK_PAGE);
    let window = Window::new(BLOCK_PAGE, &page);
    let etching = read(ETCHING_PAGE);
    let tx = etching.runs()[0].tx;
    let cut = text(transaction(&[window], &tx, 0, 20));
    assert_eq!(cut.as_deref(), Some(ETCHING_PAGE));
    let past = text(transaction(&[window], &tx, 2, 60));
    let expected = r#"{"limit":60,"offset":2,"total":0,"results":[]}"#;
    assert_eq!(past.as_deref(), Some(expected));
    let whole = Edges {
        before: false,
        after: false,
    };
    assert_eq!(touches(window, &tx), Some(whole));
    assert_eq!(transaction(&[window], &tx, 0, 0), None);
    // Absence is not inferred.
    let absent = hash(TX).unwrap();
    assert_eq!(transaction(&[window], &absent, 0, 20), None);
    assert_eq!(transaction(&[window], &absent, 50, 20), None);
    assert_eq!(touches(window, &absent), None);
    // Nor what lies beyond the edges.
    let page = read(TRANSACTION_PAGE);
    let window = Window::new(TRANSACTION_PAGE, &page);
    assert_eq!(transaction(&[window], &absent, 0, 20), None);
    let both = Edges {
        before: true,
        after: true,
    };
    assert_eq!(touches(window, &absent), Some(both));
    assert_eq!(transaction(&[], &absent, 0, 20), None);
}

#[test]
fn a_transaction_that_cannot_be_told() {
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
            let stored = style.windows(&list, offsets, size);
            let cut = transaction(&stored.windows(), &numbered(1), 0, 20);
            assert_eq!(cut, None, "{list:?}");
        }
    }
    // Where the total is less than what is there.
    let body = Style::reference().page(&[one(2, 0), one(1, 0), one(3, 0)], 0, 3);
    let body = body.replace(r#""total":3"#, r#""total":2"#);
    let page = read(&body);
    let cut = transaction(&[Window::new(&body, &page)], &numbered(1), 0, 20);
    assert_eq!(cut, None);
    // From windows that are no neighbours.
    let list: Vec<_> = (1..7).map(|tx| one(tx, 0)).collect();
    let stored = style.windows(&list, [0, 2, 4, 6].into_iter(), 2);
    let all = stored.windows();
    let cut = |windows: &[Window<'_>]| transaction(windows, &numbered(1), 0, 20).is_some();
    assert!(cut(&all) && cut(&all[..1]) && cut(&[all[0], all[1]]));
    assert!(!cut(&[all[0], all[2]]) && !cut(&[all[1], all[0]]) && !cut(&[all[0], all[0]]));
}

#[test]
fn hashes() {
    assert_eq!(hash(BLOCK).map(|hash| hex(&hash)).as_deref(), Some(BLOCK));
    assert_eq!(hash(&BLOCK.to_uppercase()), hash(BLOCK));
    let largest = "f".repeat(64);
    assert_eq!(hash(&largest), Some([255; 32]));
    let short = &largest[1..];
    for text in [
        String::new(),
        short.to_owned(),
        format!("{largest}0"),
        format!("{largest}00"),
        format!("{short}g"),
        format!("{short}/"),
        format!("{short}:"),
        format!("{short}@"),
        format!("{short}`"),
        format!(" {short}"),
        format!("+{short}"),
        format!("0x{}", &largest[2..]),
        format!("{}é", &largest[2..]),
        "é".repeat(32),
    ] {
        assert_eq!(hash(&text), None, "{text}");
    }
}

fn styles() -> impl Strategy<Value = Style> {
    let blanks = select(vec!["", "", " ", "\n  "]);
    let commas = select(vec![",", ",", ", ", "\n,\t"]);
    let order = Just(vec![0, 1, 2, 3]).prop_shuffle();
    let any = (order, blanks, commas).prop_map(|(order, blank, comma)| Style {
        order,
        blank,
        comma,
    });
    prop_oneof![Just(Style::reference()), any]
}

fn blocks() -> impl Strategy<Value = List> {
    let lengths = collection::vec(prop_oneof![1_usize..4, 1_usize..40], 0..20);
    let blanks = select(vec!["", " ", "\n"]);
    (lengths, blanks).prop_map(|(lengths, blank)| List::new(&lengths, blank))
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..=70, Just(60), Just(10_000)]
}

fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..80, 0_u64..900, Just(MOST_OFFSET)]
}

fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..=60, Just(1 << 32)]
}

/// The items of a body, as they came.
fn items(body: &str) -> Vec<String> {
    let page = read(body);
    let item = |at| page.item(body.as_bytes(), at).unwrap().to_vec();
    let items = (0..page.len()).map(item);
    items.map(|item| String::from_utf8(item).unwrap()).collect()
}

fn value(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

proptest! {
    /// A page that is cut is the page that the upstream gives: as a JSON value,
    /// and item by item; where the upstream writes no blanks between items,
    /// byte for byte.
    #[test]
    fn cut_as_the_upstream_would(
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
        let stored = style.windows(&block.items, touched.iter().copied(), size);
        for ((_, page), at) in stored.0.iter().zip(&touched) {
            prop_assert_eq!(check_window(page, *at, size), Ok(()));
            prop_assert!(page.is_located());
            prop_assert!(page.blocks().len() <= 1);
        }
        let all = stored.windows();
        prop_assert!(agree(&all));
        let cut = text(assemble(&all, offset, limit)).unwrap();
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
            let cut = assemble(&fewer, offset, limit);
            prop_assert!(cut.is_none());
        }
    }

    /// From any windows of a block's list there is either no page of a
    /// transaction, or the one that the upstream gives; and there is one where
    /// no neighbour is missing.
    #[test]
    fn transactions_as_the_upstream_would(
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
        check(transaction(&all, &tx, offset, limit))?;
        let cut = transaction(some, &tx, offset, limit);
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
            let Some(edges) = touches(*window, &tx) else {
                continue;
            };
            let (mut low, mut high, mut low_edges, mut high_edges) = (at, at, edges, edges);
            while low_edges.before && low > 0 {
                match touches(all[low - 1], &tx) {
                    Some(edges) => (low, low_edges) = (low - 1, edges),
                    None => break,
                }
            }
            while high_edges.after {
                match touches(all[high + 1], &tx) {
                    Some(edges) => (high, high_edges) = (high + 1, edges),
                    None => break,
                }
            }
            let low = low - usize::from(low_edges.before);
            let high = high + usize::from(high_edges.after);
            check(transaction(&all[low..=high], &tx, offset, limit))?;
        }
        let absent = numbered(u32::MAX);
        prop_assert!(transaction(&all, &absent, offset, limit).is_none());
    }

    /// Windows of two moments are told apart by their totals or their blocks.
    #[test]
    fn moments_do_not_mix(
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
        let stored = Stored::new(bodies);
        let windows = stored.windows();
        prop_assert!(!(agree(&windows) && of_one_block(&windows)));
        prop_assert!(other.is_some() || assemble(&stored.windows(), 0, total).is_none());
        prop_assert!(transaction(&stored.windows(), &numbered(0), 0, 60).is_none());
    }

    /// Whatever becomes of a body's bytes: nothing panics, and what is read is
    /// what another reader of JSON reads.
    #[test]
    fn mutated_bodies(
        body in select(vec![BLOCK_PAGE, TRANSACTION_PAGE, PAST_END]),
        edits in collection::vec((any::<Index>(), any::<u8>(), 0_u8..4), 0..6),
        offset in offsets(),
    ) {
        let mut bytes = body.as_bytes().to_vec();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes[at] = b"[]{},:\"\\ 019"[usize::from(byte % 12)],
                2 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let Some(page) = Page::read(&bytes) else {
            return Ok(());
        };
        // What is no number to the other reader may yet be one to a client.
        let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
            return Ok(());
        };
        prop_assert_eq!(value["limit"].as_u64(), Some(page.limit));
        prop_assert_eq!(value["offset"].as_u64(), Some(page.offset));
        prop_assert_eq!(value["total"].as_u64(), Some(page.total));
        let list = value["results"].as_array().unwrap();
        prop_assert_eq!(list.len(), page.len());
        for (at, expected) in list.iter().enumerate() {
            let item = page.item(&bytes, at).unwrap();
            let item: Value = serde_json::from_slice(item).unwrap();
            prop_assert_eq!(&item, expected);
        }
        let window = Window { body: &bytes, page: &page };
        let _ = check_window(&page, offset, 60);
        let _ = ends_before(window, offset);
        let txs: Vec<_> = page.runs().iter().map(|run| run.tx).collect();
        for tx in txs {
            prop_assert!(touches(window, &tx).is_some());
            let _ = transaction(&[window, window], &tx, offset, u64::MAX);
            if let Some(cut) = transaction(&[window], &tx, 0, 60) {
                prop_assert!(Page::read(&cut).is_some());
            }
        }
        for limit in [1, u64::MAX] {
            let cut = assemble(&[window], offset, limit);
            prop_assert!(cut.is_none_or(|cut| Page::read(&cut).is_some()));
        }
        // A body that is not the page's own.
        let other = Window { body: &bytes[..bytes.len() / 2], page: &page };
        let _ = assemble(&[other], 0, 60);
        let _ = page.item(other.body, 0);
    }

    /// Windows are ascending, aligned, and hold all that was asked.
    #[test]
    fn windows_hold_the_page(
        offset in prop_oneof![0_u64..1000, 0..=MOST_OFFSET],
        limit in prop_oneof![1_u64..200, 1_u64..=1 << 32],
        size in prop_oneof![1_u64..100, 1_u64..=1 << 32],
        many in subsequence(vec![0_usize, 1, 2, 100], 1),
    ) {
        let found: Vec<_> = windows(offset, limit, size).take(many[0] + 1).collect();
        prop_assert!(found[0] <= offset && offset - found[0] < size);
        for (nth, at) in found.iter().enumerate() {
            prop_assert_eq!(*at, found[0] + nth as u64 * size);
            prop_assert!(*at < offset + limit && *at <= MOST_OFFSET);
        }
        if found.len() <= many[0] {
            let end = found[found.len() - 1] + size;
            prop_assert!(end >= offset + limit || end > MOST_OFFSET);
        }
    }
}
