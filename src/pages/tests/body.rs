//! What is read of a body.

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::*;

#[test]
fn a_recorded_page_is_indexed() {
    let page = read(BLOCK_PAGE);
    assert_eq!((page.limit, page.offset, page.total), (20, 0, 5));
    assert_eq!((page.len(), page.is_empty()), (5, false));
    let block = Block {
        height: 840_000,
        hash: hash(BLOCK).unwrap(),
    };
    assert_eq!(page.blocks, [block]);
    assert!(page.is_located);
    let txs = page.txs.iter();
    let txs: Vec<_> = txs
        .map(|part| (hex(&part.tx), part.first, part.count))
        .collect();
    for ((tx, first, count), expected) in
        txs.iter()
            .zip([("a2f1", 0, 1), ("c444", 1, 2), ("2bb8", 3, 2)])
    {
        assert_eq!((&tx[..4], *first, *count), expected);
    }
    let value: Value = serde_json::from_str(BLOCK_PAGE).unwrap();
    for at in 0..5 {
        let item = page.item(at).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(item).unwrap(),
            value["results"][at]
        );
    }
    assert_eq!(page.item(5), None);
    assert_eq!(page.item(usize::MAX), None);
    assert_eq!(page.weight(), 5 * 8 + 3 * 40 + 36);

    let page = read(PAST_END);
    assert_eq!((page.limit, page.offset, page.total), (20, 1000, 0));
    assert!(page.is_empty() && page.is_located);
    assert_eq!(
        (page.blocks.len(), page.txs.len(), page.weight()),
        (0, 0, 0)
    );
}

#[test]
fn a_page_with_further_members_mentions_its_blocks_and_is_no_window() {
    let body = BLOCK_PAGE.replacen('{', r#"{"next":[{"limit":7}],"#, 1);
    let (page, plain) = (read(&body), read(BLOCK_PAGE));
    assert_eq!(page.blocks, plain.blocks);
    assert_eq!((page.total, page.len()), (plain.total, plain.len()));
    assert!(plain.is_plain && !page.is_plain);
    assert!(!page.is_window(page.offset, page.limit));
}

#[test]
fn which_bodies_are_no_page() {
    for body in [
        "",
        "null",
        "[]",
        "[1,0,0,[]]",
        "{}",
        r#"{"error":"Not found"}"#,
        // Members that are missing, or spelt in a way that none does.
        r#"{"limit":1,"offset":0,"total":0}"#,
        r#"{"limit":1,"offset":0,"results":[]}"#,
        r#"{"limit":1,"total":0,"results":[]}"#,
        r#"{"offset":0,"total":0,"results":[]}"#,
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
        assert!(Page::read(&Bytes::from(body)).is_none(), "{body}");
    }
    let latin = b"{\"limit\":1,\"offset\":0,\"total\":1,\"results\":[\"\xe9\"]}";
    assert!(Page::read(&Bytes::from_static(latin)).is_none());
}

#[test]
fn pages_of_any_style_are_read() {
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
    let items: Vec<_> = (0..3).map(|at| page.item(at)).collect();
    assert_eq!(items, [Some(&b"1"[..]), Some(b"\"]\""), Some(b"[ ]")]);
    // What is between items of a window stays; the envelope is written anew.
    let cut = cut_page(&[&page], 1, 20);
    let expected = r#"{"limit":20,"offset":1,"total":3,"results":["]" ,[ ]]}"#;
    assert_eq!(text(cut).as_deref(), Some(expected));
    // What is nested deeply is skipped without recursion.
    let (deep, up) = ("[".repeat(200_000), "]".repeat(200_000));
    let body = format!(r#"{{"limit":1,"offset":0,"total":1,"results":[{deep}{up}]}}"#);
    let page = read(&body);
    assert_eq!(page.item(0).unwrap().len(), 400_000);
    assert!(!page.is_located);
    let body = format!(r#"{{"limit":1,"offset":0,"total":1,"results":[{{"a":{deep}{up}}}]}}"#);
    assert!(!read(&body).is_located);
    let body = format!(r#"{{"limit":{deep}{up},"offset":0,"total":1,"results":[]}}"#);
    assert!(Page::read(&body.into()).is_none());
}

#[test]
fn tokens_and_empty_lists_are_read() {
    for (body, empty, deploy_height) in [
        (r#"{"results":[]}"#, true, None),
        (r#"{"results":[ ],"next":null}"#, true, None),
        (
            r#"{"limit":1,"offset":0,"total":0,"results":[]}"#,
            true,
            None,
        ),
        (r#"{"results":[1]}"#, false, None),
        (r#"{"results":{}}"#, false, None),
        (
            r#"{"limit":"1","offset":0,"total":0,"results":[]}"#,
            true,
            None,
        ),
        ("[]", false, None),
        ("7", false, None),
        (
            r#"{"token":{"block_height":840000,"x":1},"supply":{}}"#,
            false,
            Some(840_000),
        ),
        (r#"{"token":{"block_height":null}}"#, false, None),
        (r#"{"token":{"block_height":"1"}}"#, false, None),
        (r#"{"token":{}}"#, false, None),
        (r#"{"token":null}"#, false, None),
        (r#"{"block_height":1}"#, false, None),
    ] {
        let index = BodyIndex::read(&body.into()).unwrap();
        assert_eq!(
            (index.empty, index.deploy_height),
            (empty, deploy_height),
            "{body}"
        );
    }
    for body in ["", "{", r#"{"results":[}"#, r#"{"a":1}{}"#, "\u{feff}{}"] {
        assert!(BodyIndex::read(&body.into()).is_none(), "{body}");
    }
    assert!(BodyIndex::read(&Bytes::from_static(b"{\"a\":\"\xe9\"}")).is_none());
}

#[test]
fn which_items_have_a_location() {
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
        (format!(r#"[{{{good}}}]"#), false),
        ("{}".to_owned(), false),
        ("null".to_owned(), false),
        ("\"location\"".to_owned(), false),
    ];
    for (item, located) in rows {
        let body = format!(r#"{{"limit":1,"offset":0,"total":1,"results":[{item}]}}"#);
        let page = read(&body);
        assert_eq!(page.is_located, located, "{item}");
        assert_eq!(page.blocks.len(), usize::from(located), "{item}");
        assert_eq!(page.txs.len(), usize::from(located), "{item}");
        if located {
            assert_eq!(hex(&page.blocks[0].hash), BLOCK);
            assert_eq!(hex(&page.txs[0].tx), TX);
        }
    }
}

#[test]
fn neighbouring_items_of_a_transaction_are_one_part() {
    let list = [
        item(7, 1, 1, 0, ""),
        item(7, 1, 1, 1, " "),
        item(8, 2, 2, 0, ""),
        // One that comes again is another part.
        item(7, 1, 1, 2, ""),
        // An item without a location separates its neighbours.
        "{}".to_owned(),
        item(7, 1, 1, 3, ""),
        // Another block at the height of a former one.
        item(7, 3, 4, 0, ""),
    ];
    let body = Style::reference().page(&list, 0, 60);
    let page = read(&body);
    let blocks: Vec<_> = page.blocks.iter().map(|b| (b.height, b.hash)).collect();
    assert_eq!(
        blocks,
        [(7, numbered(1)), (8, numbered(2)), (7, numbered(3))]
    );
    let txs: Vec<_> = page
        .txs
        .iter()
        .map(|part| (part.tx, part.first, part.count))
        .collect();
    assert_eq!(
        txs,
        [
            (numbered(1), 0, 2),
            (numbered(2), 2, 1),
            (numbered(1), 3, 1),
            (numbered(1), 5, 1),
            (numbered(4), 6, 1),
        ]
    );
    assert!(!page.is_located);
}

#[test]
fn a_hash_is_64_hex_digits() {
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

proptest! {
    /// Whatever becomes of a body's bytes: nothing panics, and what is read is
    /// what another reader of JSON reads.
    #[test]
    fn mutated_bodies_are_read_as_serde_reads_them(
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
        let bytes = Bytes::from(bytes);
        let index = BodyIndex::read(&bytes);
        let is_utf8 = std::str::from_utf8(&bytes).is_ok();
        let is_json = is_utf8 && serde_json::from_slice::<IgnoredAny>(&bytes).is_ok();
        prop_assert_eq!(index.is_some(), is_json);
        let Some(page) = index.and_then(|index| index.page) else {
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
            let item = page.item(at).unwrap();
            let item: Value = serde_json::from_slice(item).unwrap();
            prop_assert_eq!(&item, expected);
        }
        for tx in page.txs.iter().map(|part| part.tx) {
            let _ = find_run(&[&page, &page], &tx);
            if let Some(Run::Whole(run)) = find_run(&[&page], &tx) {
                let cut = cut_run(&[&page], &run, 0, 60);
                prop_assert!(cut.is_none_or(|cut| Page::read(&cut.body).is_some()));
            }
        }
        for limit in [1, u64::MAX] {
            let cut = cut_page(&[&page], offset, limit);
            prop_assert!(cut.is_none_or(|cut| Page::read(&cut.body).is_some()));
        }
    }
}
