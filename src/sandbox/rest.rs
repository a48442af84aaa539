//! The rest of the reference's API, as far as it is modelled: etchings and their holders, BRC-20 balances of an address,
//! inscriptions by their ids with their content, which is an image.
//!
//! `api` uses it. Figures change with each block. Each transaction of the chain has made an inscription. Deliberately
//! absent: the reference's answer for what there is not, which is that for an unknown route here.

use serde_json::{Value, json};

use super::chain::Chain;
use super::mix::{address, decimal, mix, mix2};
use super::runes::{KNOWN, known};
use super::tokens;

/// The holders of each rune.
const HOLDERS: u64 = 30;

/// What a path names, with its tag: a list, an object, or an image as a string.
pub(super) fn find(chain: &Chain, path: &[&str]) -> Option<(String, Value)> {
    let tip = chain.tip()?;
    let figure = |of: u64| decimal(u128::from(mix2(tip.serial.into(), of)), 8);
    Some(match path {
        ["runes", "v1", "etchings", path @ ..] => {
            let etching = |rune| {
                let (id, number, spaced, digits) = known(rune);
                let name = spaced.replace('•', "");
                let supply = json!({ "current": figure(number) });
                json!({ "id": id, "number": number, "name": name, "divisibility": digits, "supply": supply })
            };
            let mut etchings = (0..KNOWN.len()).map(etching);
            let found = match path {
                [] => etchings.collect(),
                [name] => etchings.find(|rune| rune["name"] == *name)?,
                [name, "holders"] => {
                    let rune = etchings.position(|rune| rune["name"] == *name)? as u64;
                    let holder =
                        |at| json!({ "address": address(at), "balance": figure(rune << 32 | at) });
                    (0..HOLDERS).map(holder).collect()
                }
                _ => return None,
            };
            (chain.hash(tip), found)
        }
        ["ordinals", "v1", "brc-20", "balances", holder] => {
            let holder = holder.bytes().fold(0, |all, byte| mix2(all, byte.into()));
            let balance =
                |(at, ticker)| json!({ "ticker": ticker, "overall_balance": figure(holder ^ at) });
            let balances = (0..).zip(tokens::tickers()).map(balance).collect();
            (chain.highest_timestamp()?.to_string(), balances)
        }
        ["ordinals", "v1", "inscriptions", id, path @ ..] => {
            let (block, (key, _)) = chain.find_tx(id.strip_suffix("i0")?)?;
            let hash = chain.hash(block);
            let found = match path {
                [] => json!({
                    "id": id,
                    "genesis_block_height": block.height,
                    "genesis_block_hash": hash,
                    "content_type": "image/svg+xml",
                }),
                ["content"] => {
                    let hue = mix(key) % 360;
                    let head = r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path d="M0 0h8v8H0z" fill="#;
                    format!(r#"{head}"hsl({hue} 60% 50%)"/><circle cx="4" cy="4" r="2"/></svg>"#)
                        .into()
                }
                _ => return None,
            };
            (format!("{id}:{hash}"), found)
        }
        _ => return None,
    })
}
