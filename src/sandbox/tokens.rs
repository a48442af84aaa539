//! BRC-20 tokens: their details, and how their figures change with the chain.
//!
//! Used by `api`. A token's figures are computed from the last block at which it was active, not accumulated, so they
//! depend only on the present chain. Invariants: without a reorg, supplies and transaction counts never fall, and a
//! supply never exceeds its maximum; the answer for a token changes only in blocks where it is active. Balances,
//! transfers and the other BRC-20 routes of the reference are not modelled.

use super::chain::Chain;
use super::mix::{Stream, mix, mix2, push_address};
use super::runes::push_decimal;

/// How often a token's figures change.
#[derive(Clone, Copy)]
enum Schedule {
    /// Every this many blocks, counted from the first block.
    Every(u32),
    /// Never.
    Dormant,
}

/// The fixed properties of a token; the others follow from its index in the table.
struct Token {
    ticker: &'static str,
    max: u64,
    limit: Option<u64>,
    decimals: u8,
    schedule: Schedule,
    /// A cursed inscription: its number is negative.
    cursed: bool,
    self_mint: bool,
    minted_out: bool,
}

const fn token(ticker: &'static str, max: u64, limit: u64, schedule: Schedule) -> Token {
    let limit = Some(limit);
    Token {
        ticker,
        max,
        limit,
        decimals: 18,
        schedule,
        cursed: false,
        self_mint: false,
        minted_out: false,
    }
}

/// Tokens with a property to test.
const NOTABLE: [Token; 13] = [
    Token {
        minted_out: true,
        ..token("ordi", 21_000_000, 1_000, Schedule::Every(1))
    },
    Token {
        minted_out: true,
        ..token(
            "sats",
            2_100_000_000_000_000,
            100_000_000,
            Schedule::Every(2),
        )
    },
    token(
        "pepe",
        420_690_000_000_000,
        1_000_000_000,
        Schedule::Every(1),
    ),
    token("🐸", 1_000_000, 10, Schedule::Every(1)),
    Token {
        self_mint: true,
        ..token("smint", u64::MAX, 10, Schedule::Every(5))
    },
    Token {
        limit: None,
        ..token("free", 5_000_000, 0, Schedule::Every(3))
    },
    Token {
        cursed: true,
        decimals: 0,
        ..token("zero", u64::MAX, 10, Schedule::Every(7))
    },
    Token {
        decimals: 8,
        ..token("àé", 1_000, 1, Schedule::Dormant)
    },
    token("a/b?", 1_000, 10, Schedule::Dormant),
    token("a b%", 1_000, 10, Schedule::Every(4)),
    Token {
        minted_out: true,
        ..token("rats", 1_000_000_000_000, 1_000_000, Schedule::Every(1))
    },
    Token {
        minted_out: true,
        ..token("done", 21_000_000, 500, Schedule::Dormant)
    },
    Token {
        decimals: 2,
        ..token("cent", 99_999_999, 250, Schedule::Every(10))
    },
];

/// Ordinary tokens.
const PLAIN: [&str; 35] = [
    "abba", "bolt", "cove", "dune", "echo", "fern", "glow", "hush", "iris", "jade", "kelp", "lime",
    "moss", "nova", "opal", "pine", "quay", "reef", "sage", "tide", "urge", "vale", "wolf", "xyst",
    "yarn", "zest", "1111", "1234", "bnb1", "coin", "mice", "oink", "punk", "solo", "vmpx",
];

/// All tickers, those of [`NOTABLE`] first.
pub(super) fn tickers() -> impl Iterator<Item = &'static str> {
    NOTABLE.iter().map(|token| token.ticker).chain(PLAIN)
}

/// The answer's body for a ticker in any case, or none if there is no such token. With `ahead`, the figures are those of
/// the next block.
pub(super) fn body(chain: &Chain, ticker: &str, ahead: bool) -> Option<String> {
    let folded = ticker.to_lowercase();
    let index = tickers().position(|known| known == folded)?;
    let plain = |at: usize| token(PLAIN[at], 21_000_000, 1_000, plain_schedule(index));
    Some(match NOTABLE.get(index) {
        Some(token) => write(chain, token, index, ahead),
        None => write(chain, &plain(index - NOTABLE.len()), index, ahead),
    })
}

const fn plain_schedule(index: usize) -> Schedule {
    match index % 4 {
        0 => Schedule::Dormant,
        1 => Schedule::Every(1),
        _ => Schedule::Every(index as u32 % 9 + 2),
    }
}

/// The number of a token's active blocks since the first block, and a random word that depends on the chain's history.
#[derive(Default)]
struct Progress {
    steps: u64,
    chance: u64,
}

fn progress(chain: &Chain, schedule: Schedule, index: usize, ahead: bool) -> Progress {
    let (Schedule::Every(every), Some(tip)) = (schedule, chain.tip()) else {
        return Progress::default();
    };
    let height = tip.height.saturating_add(u32::from(ahead));
    let since = height - chain.origin();
    let active = chain.origin() + since / every * every;
    let serial = match chain.at(active) {
        Some(block) => block.serial,
        // Only the next block can be above the tip.
        None if active > tip.height => chain.next_serial(),
        None => 0,
    };
    Progress {
        steps: u64::from(since / every),
        chance: mix2(u64::from(serial) << 8, index as u64),
    }
}

fn write(chain: &Chain, token: &Token, index: usize, ahead: bool) -> String {
    let mut fixed = Stream::new(mix2(chain.seed() ^ 0x74_6f6b_656e, index as u64));
    let Progress { steps, chance } = progress(chain, token.schedule, index, ahead);
    let unit = 10u128.pow(u32::from(token.decimals));
    let max = u128::from(token.max) * unit;
    let minted = if token.minted_out {
        max
    } else {
        // The random part is less than a batch, so a supply never falls.
        let batch = u128::from(token.limit.unwrap_or(token.max / 1_000_000).max(1)) * unit;
        let begun = max / 100 * u128::from(20 + fixed.below(50));
        begun
            .saturating_add(batch * u128::from(steps))
            .saturating_add(u128::from(chance) % batch)
            .min(max)
    };
    let tx_count = 1_000 + fixed.below(300_000) + 7 * steps + chance % 7;
    let holders = 10 + fixed.below(20_000) + 2 * steps + mix(chance) % 2;
    let number = 300_000 + fixed.below(90_000_000) as i64;
    let tx_id = format!(
        "{:016x}{:016x}{:016x}{:016x}",
        fixed.next(),
        fixed.next(),
        fixed.next(),
        fixed.next()
    );
    let deployed = chain
        .origin()
        .saturating_sub(1_000 + fixed.below(50_000) as u32);
    let mut address = String::new();
    push_address(&mut address, fixed.below(700));
    let decimal = |raw: u128| {
        let mut out = String::from("\"");
        push_decimal(&mut out, raw, token.decimals);
        out.push('"');
        out
    };
    let (max, minted) = (decimal(max), decimal(minted));
    format!(
        "{{\"token\":{{\"id\":\"{tx_id}i0\",\"number\":{number},\"block_height\":{deployed},\"tx_id\":\"{tx_id}\",\
         \"address\":\"{address}\",\"ticker\":{ticker},\"max_supply\":{max},\"mint_limit\":{limit},\
         \"decimals\":{decimals},\"deploy_timestamp\":{timestamp},\"minted_supply\":{minted},\"tx_count\":{tx_count},\
         \"self_mint\":{self_mint}}},\"supply\":{{\"max_supply\":{max},\"minted_supply\":{minted},\
         \"holders\":{holders}}}}}",
        number = if token.cursed { -7 } else { number },
        ticker = serde_json::Value::from(token.ticker),
        limit = token.limit.map_or_else(
            || "null".to_owned(),
            |limit| decimal(u128::from(limit) * unit)
        ),
        decimals = token.decimals,
        // Milliseconds, unlike the timestamps in the locations of rune activity.
        timestamp = 1_678_248_991_000 + fixed.below(30_000_000) as i64 * 1_000,
        self_mint = token.self_mint,
    )
}

#[cfg(test)]
mod tests {
    use super::{body, tickers};
    use crate::sandbox::chain::Chain;
    use serde_json::Value;

    fn read(chain: &Chain, ticker: &str) -> Value {
        serde_json::from_str(&body(chain, ticker, false).expect("a token")).expect("JSON")
    }

    #[test]
    fn figures_change_with_blocks_and_never_fall() {
        let mut chain = Chain::new(1, 840_000, 50);
        let figure = |value: &Value| -> (u128, u64, u64) {
            let minted = value["token"]["minted_supply"]
                .as_str()
                .expect("text")
                .replace('.', "");
            let count = value["token"]["tx_count"].as_u64().expect("a number");
            (
                minted.parse().expect("digits"),
                count,
                value["supply"]["holders"].as_u64().expect("a number"),
            )
        };
        let first: Vec<_> = tickers()
            .map(|ticker| figure(&read(&chain, ticker)))
            .collect();
        let mut last = first.clone();
        for _ in 0..40 {
            chain.push();
            for (index, ticker) in tickers().enumerate() {
                let now = figure(&read(&chain, ticker));
                let was = last[index];
                assert!(
                    now.0 >= was.0 && now.1 >= was.1 && now.2 >= was.2,
                    "{ticker}"
                );
                last[index] = now;
            }
        }
        let moved = first
            .iter()
            .zip(&last)
            .filter(|(first, last)| first != last)
            .count();
        assert!(
            moved > 20 && moved < tickers().count(),
            "some change and some do not"
        );
    }

    #[test]
    fn a_reorg_changes_figures_and_ahead_gives_those_of_the_next_block() {
        let mut chain = Chain::new(1, 840_000, 50);
        let before = body(&chain, "pepe", false);
        let early = body(&chain, "pepe", true);
        assert_ne!(before, early);
        let mut grown = chain.clone();
        grown.push();
        assert_eq!(body(&grown, "pepe", false), early);
        chain.rollback(1);
        chain.apply();
        assert_ne!(body(&chain, "pepe", false), before);
    }
}
