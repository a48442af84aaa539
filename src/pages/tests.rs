//! Answers recorded of the reference upstream, and a model of how it divides a list
//! into pages.

mod body;
mod cuts;
mod windows;

use std::ops::Range;

use proptest::prelude::{Just, Strategy, any};
use proptest::sample::{Index, select};
use proptest::{
    collection, option, prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest,
};
use serde_json::Value;

use super::windows::MOST_OFFSET;
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

impl Page {
    /// An item's bytes; `None` where the page has no such item.
    fn item(&self, at: usize) -> Option<&[u8]> {
        self.items(at..at.checked_add(1)?)
    }
}

fn read(body: &str) -> Box<Page> {
    Page::read(&body.to_owned().into()).unwrap_or_else(|| panic!("{body}"))
}

/// The body of a page that was cut, whose index is as if it were read from there.
fn text(cut: Option<Box<Page>>) -> Option<String> {
    let page = cut?;
    let body = String::from_utf8(page.body.to_vec()).unwrap();
    let mut read = read(&body);
    // Those of a transaction are looked for in its block's windows alone.
    read.txs.clear();
    read.is_located = true;
    assert_eq!(page, read);
    Some(body)
}

/// Pages as windows.
fn all(pages: &[Box<Page>]) -> Vec<&Page> {
    pages.iter().map(|page| &**page).collect()
}

/// The hash that is written as one number.
fn numbered(number: u32) -> Hash {
    hash(&format!("{number:064x}")).unwrap()
}

/// An item of a transaction in a block, with `blank` between its members.
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

    fn is_reference(&self) -> bool {
        (&*self.order, self.blank, self.comma) == (&[0, 1, 2, 3], "", ",")
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

    #[expect(clippy::vec_box, reason = "a page is read into a box")]
    fn windows(
        &self,
        list: &[String],
        offsets: impl IntoIterator<Item = u64>,
        size: u64,
    ) -> Vec<Box<Page>> {
        let window = |offset| read(&self.page(list, offset, size));
        offsets.into_iter().map(window).collect()
    }
}

/// A block's list, and the range of each of its transactions.
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
    let item = |at| page.item(at).unwrap().to_vec();
    let items = (0..page.len()).map(item);
    items.map(|item| String::from_utf8(item).unwrap()).collect()
}

fn value(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}
