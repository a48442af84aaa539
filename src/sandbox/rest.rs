//! The rest of the reference's API, as far as it is modelled: etchings and their holders, BRC-20 balances of an address,
//! inscriptions by their ids with their content, which is an image.
//!
//! `api` uses it. Figures change with each block. Each transaction of the chain is an inscription.

use serde_json::{Value, json};

use super::chain::{Block, Chain, Placed};
use super::mix::{address, decimal, mix, mix2};
use super::runes::{KNOWN, known};
use super::tokens;

/// The holders of each rune.
const HOLDERS: u64 = 30;

/// What a path names: a list, an object, or an image as a string.
pub(super) fn find(chain: &Chain, path: &[&str]) -> Option<Value> {
    let serial = u64::from(chain.tip()?.serial);
    let figure = |of: u64, digits| decimal(u128::from(mix2(serial, of) >> 20), digits);
    let etching = |rune: usize| {
        let (id, number, spaced, digits) = known(rune);
        let (current, name) = (figure(number, digits), spaced.replace('•', ""));
        json!({
            "id": id,
            "number": number,
            "name": name,
            "spaced_name": spaced,
            "divisibility": digits,
            "supply": { "current": current, "minted": current },
        })
    };
    let named = |name: &str| {
        let is_of = |rune: &Value| {
            let texts = ["id", "name", "spaced_name"].map(|member| rune[member].as_str());
            texts.contains(&Some(name)) || rune["number"].as_u64() == name.parse().ok()
        };
        (0..KNOWN.len()).map(etching).find(is_of)
    };
    Some(match path {
        ["runes", "etchings"] => (0..KNOWN.len()).map(etching).collect(),
        ["runes", "etchings", name] => named(name)?,
        ["runes", "etchings", name, "holders"] => {
            let number = named(name)?["number"].as_u64()?;
            let holder = |at| {
                let balance = figure(number << 32 | at, 0);
                json!({ "address": address(number + 7 * at), "balance": balance })
            };
            (0..HOLDERS).map(holder).collect()
        }
        ["ordinals", "brc-20", "balances", holder] => {
            let holder = holder.bytes().fold(0, |all, byte| mix2(all, byte.into()));
            let balance = |(at, ticker)| {
                let balance = figure(holder ^ at, 18);
                json!({
                    "ticker": ticker,
                    "available_balance": balance,
                    "transferrable_balance": "0",
                    "overall_balance": balance,
                })
            };
            (0..).zip(tokens::tickers()).map(balance).collect()
        }
        ["ordinals", "inscriptions", id] => {
            let (block, (key, index)) = inscribed(chain, id)?;
            json!({
                "id": id,
                "number": (key >> 32) << 16 | key & 0xffff,
                "address": address(mix(key)),
                "genesis_block_height": block.height,
                "genesis_block_hash": chain.hash(block),
                "genesis_tx_id": chain.tx_id(key),
                "genesis_timestamp": block.timestamp * 1_000,
                "tx_index": index,
                "content_type": "image/svg+xml",
                "content_length": image(key).len(),
            })
        }
        ["ordinals", "inscriptions", id, "content"] => image(inscribed(chain, id)?.1.0).into(),
        _ => return None,
    })
}

/// The tag of an inscription: that of where it is.
pub(super) fn tag(chain: &Chain, id: &str) -> Option<String> {
    let (block, _) = inscribed(chain, id)?;
    Some(format!("{id}:{}", block.serial))
}

/// The block and the place of the transaction that has made an inscription.
fn inscribed<'c>(chain: &'c Chain, id: &str) -> Option<(&'c Block, Placed)> {
    chain.find_tx(id.strip_suffix("i0")?)
}

fn image(key: u64) -> String {
    let hue = mix(key) % 360;
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path fill="hsl({hue} 60% 50%)" d="M0 0h8v8H0z"/><circle cx="4" cy="4" r="2"/></svg>"#
    )
}
