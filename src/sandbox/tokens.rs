//! BRC-20 tokens: their details, and how their figures change with the chain.
//!
//! Used by `api`. A token's figures are computed from the last block at which it was active, not accumulated, so they
//! depend only on the present chain. Invariants: without a reorg, supplies and transaction counts never fall, and a
//! supply never exceeds its maximum; the answer for a token changes only in blocks where it is active. Balances and
//! transfers are not modelled.

use serde_json::{Value, json};

use super::chain::{Chain, ORIGIN};
use super::mix::{Stream, address, decimal, mix, mix2};

/// Ticker, greatest supply, limit of a mint (0 is none), decimals, and every how many blocks its figures change (0 is
/// never). All else follows from the index in the table.
type Token = (&'static str, u64, u64, u8, u32);

/// Tokens with a property to test.
const NOTABLE: [Token; 13] = [
    ("ordi", 21_000_000, 1_000, 18, 1),
    ("sats", 2_100_000_000_000_000, 100_000_000, 18, 2),
    ("pepe", 420_690_000_000_000, 1_000_000_000, 18, 1),
    ("🐸", 1_000_000, 10, 18, 1),
    ("smint", u64::MAX, 10, 18, 5),
    ("free", 5_000_000, 0, 18, 3),
    ("zero", u64::MAX, 10, 0, 7),
    ("àé", 1_000, 1, 8, 0),
    ("a/b?", 1_000, 10, 18, 0),
    ("a b%", 1_000, 10, 18, 4),
    ("rats", 1_000_000_000_000, 1_000_000, 18, 1),
    ("done", 21_000_000, 500, 18, 0),
    ("cent", 99_999_999, 250, 2, 10),
];

/// Those of which all is minted.
const MINTED_OUT: [&str; 4] = ["ordi", "sats", "rats", "done"];

/// Ordinary tokens.
const PLAIN: [&str; 35] = [
    "abba", "bolt", "cove", "dune", "echo", "fern", "glow", "hush", "iris", "jade", "kelp", "lime",
    "moss", "nova", "opal", "pine", "quay", "reef", "sage", "tide", "urge", "vale", "wolf", "xyst",
    "yarn", "zest", "1111", "1234", "bnb1", "coin", "mice", "oink", "punk", "solo", "vmpx",
];

/// All tickers, those of [`NOTABLE`] first.
pub(super) fn tickers() -> impl Iterator<Item = &'static str> {
    NOTABLE.iter().map(|token| token.0).chain(PLAIN)
}

/// The details of the token with a ticker in any case.
pub(super) fn details(chain: &Chain, ticker: &str) -> Option<Value> {
    let folded = ticker.to_lowercase();
    let index = tickers().position(|known| known == folded)?;
    let every = match index % 4 {
        0 => 0,
        1 => 1,
        _ => index as u32 % 9 + 2,
    };
    let plain = || (PLAIN[index - NOTABLE.len()], 21_000_000, 1_000, 18, every);
    let token = NOTABLE.get(index).copied().unwrap_or_else(plain);
    let (ticker, max, limit, decimals, every) = token;
    let fixed = &mut Stream::new(mix2(chain.seed ^ 0x74_6f6b_656e, index as u64));
    let (steps, chance) = progress(chain, every, index);
    let unit = 10u128.pow(u32::from(decimals));
    let greatest = u128::from(max) * unit;
    let minted = if MINTED_OUT.contains(&ticker) {
        greatest
    } else {
        let batch = match limit {
            0 => (max / 1_000_000).max(1),
            limit => limit,
        };
        let batch = u128::from(batch) * unit;
        let begun = greatest / 100 * u128::from(20 + fixed.below(50));
        // The random part is less than a batch, so a supply never falls.
        let grown = batch * u128::from(steps) + u128::from(chance) % batch;
        begun.saturating_add(grown).min(greatest)
    };
    let tx_count = 1_000 + fixed.below(300_000) + 7 * steps + chance % 7;
    let holders = 10 + fixed.below(20_000) + 2 * steps + mix(chance) % 2;
    let number = 300_000 + fixed.below(90_000_000) as i64;
    let tx_id: String = (0..4).map(|_| format!("{:016x}", fixed.next())).collect();
    let deployed = ORIGIN - 1_000 - fixed.below(50_000) as u32;
    let address = address(fixed.below(700));
    let (max_supply, minted_supply) = (decimal(greatest, decimals), decimal(minted, decimals));
    Some(json!({
        "token": {
            "id": format!("{tx_id}i0"),
            // That of a cursed inscription is negative.
            "number": if ticker == "zero" { -7 } else { number },
            "block_height": deployed,
            "tx_id": tx_id,
            "address": address,
            "ticker": ticker,
            "max_supply": max_supply,
            "mint_limit": (limit > 0).then(|| decimal(u128::from(limit) * unit, decimals)),
            "decimals": decimals,
            // Milliseconds, unlike the timestamps in the locations of rune activity.
            "deploy_timestamp": 1_678_248_991_000 + fixed.below(30_000_000) as i64 * 1_000,
            "minted_supply": minted_supply,
            "tx_count": tx_count,
            "self_mint": ticker == "smint",
        },
        "supply": { "max_supply": max_supply, "minted_supply": minted_supply, "holders": holders },
    }))
}

/// The number of active blocks since the first block of a token that is active at every so many, and a random word that
/// depends on the chain's history.
fn progress(chain: &Chain, every: u32, index: usize) -> (u64, u64) {
    let (true, Some(tip)) = (every > 0, chain.tip()) else {
        return (0, 0);
    };
    let steps = (tip.height - ORIGIN) / every;
    let serial = chain
        .at(ORIGIN + steps * every)
        .map_or(0, |block| block.serial);
    let chance = mix2(u64::from(serial) << 8, index as u64);
    (u64::from(steps), chance)
}

#[cfg(test)]
mod tests {
    use super::{details, tickers};
    use crate::sandbox::chain::Chain;
    use serde_json::Value;

    #[test]
    fn figures_change_with_blocks_and_never_fall() {
        let mut chain = Chain::new(1, 50, 1_000);
        let figures = |chain: &Chain| -> Vec<(u128, u64, u64)> {
            let figures = |ticker| {
                let value = details(chain, ticker).expect("a token");
                let minted = value["token"]["minted_supply"].as_str().expect("text");
                let minted = minted.replace('.', "").parse().expect("digits");
                let count = |value: &Value| value.as_u64().expect("a number");
                (
                    minted,
                    count(&value["token"]["tx_count"]),
                    count(&value["supply"]["holders"]),
                )
            };
            tickers().map(figures).collect()
        };
        let first = figures(&chain);
        let mut last = first.clone();
        for _ in 0..40 {
            chain.push();
            let now = figures(&chain);
            for ((now, was), ticker) in now.iter().zip(&last).zip(tickers()) {
                assert!(
                    now.0 >= was.0 && now.1 >= was.1 && now.2 >= was.2,
                    "{ticker}"
                );
            }
            last = now;
        }
        let moved = first
            .iter()
            .zip(&last)
            .filter(|(first, last)| first != last);
        let moved = moved.count();
        assert!(
            moved > 20 && moved < first.len(),
            "some change and some do not"
        );
    }

    #[test]
    fn a_reorg_changes_figures() {
        let mut chain = Chain::new(1, 50, 1_000);
        let before = details(&chain, "pepe");
        chain.rollback(1);
        chain.apply();
        assert_ne!(details(&chain, "pepe"), before);
    }
}
