//! Items: members, bytes, amounts and names of runes.

use super::{Operation, Site, events, push_item};
use crate::sandbox::chain::Chain;

/// The recorded members of each operation.
#[test]
fn items_have_the_recorded_members() {
    let chain = Chain::new(3, 840_000, 120);
    let mut seen = [0usize; 5];
    let mut beyond_u64 = 0;
    let mut buffer = Vec::new();
    for block in chain.blocks() {
        let block_hash = chain.hash(block);
        for placed in chain.placements(block) {
            events(&chain, placed, &mut buffer);
            let wide = chain.is_wide(placed.key);
            assert!(if wide {
                buffer.len() > 60
            } else {
                (1..=12).contains(&buffer.len())
            });
            for event in &buffer {
                let tx_id = chain.tx_id(placed.key);
                let site = Site {
                    chain: &chain,
                    block,
                    block_hash: &block_hash,
                    tx_id: &tx_id,
                    placed,
                };
                let mut out = String::new();
                push_item(&mut out, &site, event);
                let item: serde_json::Value = serde_json::from_str(&out).expect("an item is JSON");
                let has = |member: &str| item.get(member).is_some();
                let vout = item["location"].get("vout").is_some();
                assert_eq!(vout, item["location"].get("output").is_some());
                let shape = (has("amount"), has("address"), has("receiver_address"), vout);
                let fits = match event.operation {
                    Operation::Etching => shape == (false, false, false, false),
                    Operation::Mint => shape == (true, false, false, false),
                    Operation::Burn => shape.0 && !shape.2,
                    Operation::Send => shape == (true, true, true, true),
                    Operation::Receive => shape == (true, true, false, true),
                };
                assert!(fits, "{out}");
                seen[event.operation as usize] += 1;
                let raw: String = item["amount"].as_str().unwrap_or("0").replace('.', "");
                beyond_u64 +=
                    usize::from(raw.parse::<u128>().expect("digits") > u128::from(u64::MAX));
                let spaced = item["rune"]["spaced_name"]
                    .as_str()
                    .expect("a name")
                    .replace('•', "");
                assert_eq!(item["rune"]["name"], spaced);
                let etched: u32 = item["rune"]["id"]
                    .as_str()
                    .expect("an id")
                    .split(':')
                    .next()
                    .expect("a height")
                    .parse()
                    .expect("digits");
                assert!(etched < 840_000 || etched == block.height);
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    assert!(beyond_u64 > 0);
}

#[test]
fn members_are_in_the_recorded_order() {
    let chain = Chain::new(3, 840_000, 1);
    let block = chain.tip().expect("a tip");
    let placed = chain.placements(block)[0];
    let mut buffer = Vec::new();
    events(&chain, placed, &mut buffer);
    let site = Site {
        chain: &chain,
        block,
        block_hash: "hash",
        tx_id: "id",
        placed,
    };
    let mut out = String::new();
    push_item(
        &mut out,
        &site,
        &super::receive(&mut super::Stream::new(1), super::Subject::Known(1), 2),
    );
    let mut last = 0;
    for member in [
        "{\"rune\":{\"id\":",
        "\"number\":",
        "\"name\":",
        "\"spaced_name\":",
        "\"operation\":\"receive\"",
        "\"location\":{\"block_hash\":\"hash\"",
        "\"block_height\":840000",
        "\"tx_id\":\"id\"",
        "\"tx_index\":",
        "\"timestamp\":",
        "\"vout\":2",
        "\"output\":\"id:2\"}",
        "\"address\":\"bc1",
        "\"amount\":\"",
    ] {
        let at = out
            .find(member)
            .unwrap_or_else(|| panic!("{member} is missing in {out}"));
        assert!(at >= last, "{member} comes too early in {out}");
        last = at;
    }
}
