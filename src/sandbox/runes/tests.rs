//! Items: members, amounts and names of runes.

use std::collections::BTreeMap;

use super::{events, item};
use crate::sandbox::chain::{Chain, is_wide};

/// The recorded members of each operation, in the recorded order.
#[test]
fn items_have_the_recorded_members() {
    let chain = Chain::new(3, 120, 1_000);
    let mut seen = BTreeMap::new();
    let mut beyond_u64 = 0;
    for block in chain.blocks.iter() {
        for placed in chain.transactions(block) {
            let events = events(&chain, placed.0);
            let most = if is_wide(placed.0) { 90 } else { 12 };
            assert!((1..=most).contains(&events.len()), "{}", events.len());
            for event in &events {
                let item = item(&chain, block, placed, event);
                let names = |part: &serde_json::Value| -> Vec<String> {
                    part.as_object().unwrap().keys().cloned().collect()
                };
                let (mut members, mut location) = (names(&item), names(&item["location"]));
                assert_eq!(
                    names(&item["rune"]),
                    ["id", "number", "name", "spaced_name"]
                );
                assert_eq!(
                    members.drain(..3).as_slice(),
                    ["rune", "operation", "location"]
                );
                let place = [
                    "block_hash",
                    "block_height",
                    "tx_id",
                    "tx_index",
                    "timestamp",
                ];
                assert_eq!(location.drain(..5).as_slice(), place);
                let has_output = location == ["vout", "output"];
                assert!(has_output || location.is_empty(), "{item}");
                let members: Vec<_> = members.iter().map(String::as_str).collect();
                let fits = match event.operation {
                    "etching" => members.is_empty() && !has_output,
                    "mint" => members == ["amount"] && !has_output,
                    "burn" => matches!(members[..], ["amount"] | ["address", "amount"]),
                    "send" => members == ["address", "receiver_address", "amount"] && has_output,
                    _ => members == ["address", "amount"] && has_output,
                };
                assert!(fits, "{item}");
                *seen.entry(event.operation).or_insert(0) += 1;
                let raw = item["amount"].as_str().unwrap_or("0").replace('.', "");
                beyond_u64 += u32::from(raw.parse::<u128>().unwrap() > u128::from(u64::MAX));
                let spaced = item["rune"]["spaced_name"].as_str().unwrap();
                assert_eq!(item["rune"]["name"], spaced.replace('•', ""));
                let id = item["rune"]["id"].as_str().unwrap();
                let etched: u32 = id.split(':').next().unwrap().parse().unwrap();
                assert!(etched < 840_000 || etched == block.height);
            }
        }
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert!(beyond_u64 > 0);
}
