//! Rune activity: the events of a transaction, and an event as JSON.
//!
//! `api` uses it for the lists of a block and of a transaction, so that an event has the same bytes in both. Invariants:
//! members are in the reference's order, and absent (not null) where it omits them; an amount has exactly as many fraction
//! digits as the rune's divisibility. Balances that add up, and supply, are not modelled.

use serde_json::{Value, json};

use super::chain::{Block, Chain, ORIGIN, Placed, is_wide};
use super::mix::{Stream, address, decimal, mix2};

/// The kinds of activity, in the reference's order.
pub(super) const OPERATIONS: [&str; 5] = ["etching", "mint", "burn", "send", "receive"];

/// Runes etched before the model's first block: spaced name and divisibility.
pub(super) const KNOWN: [(&str, u8); 20] = [
    ("UNCOMMON•GOODS", 0),
    ("GATE•KEEPER•COIN", 2),
    ("OLD•HARBOUR•LAMP", 0),
    ("QUIET•RIVER•STONE", 8),
    ("LANTERN•FISH•CLUB", 5),
    ("MARBLE•STAIRCASE", 0),
    ("COPPER•KETTLE•SONG", 2),
    ("THE•NINTH•WINDOW", 18),
    ("PAPER•BOAT•FLEET", 1),
    ("SNOW•ON•THE•WIRE", 0),
    ("BAKERS•DOZEN•RUNE", 3),
    ("VELVET•THUNDER•X", 10),
    ("SLOW•TRAIN•NORTH", 0),
    ("BRASS•MONKEY•BARS", 6),
    ("WALNUT•AND•ROPE", 2),
    ("FERRYMANSTICKET", 0),
    ("MIDNIGHT•ORCHARD", 38),
    ("SEVEN•TIN•DRUMS", 4),
    ("CHALK•LINE•RIDER", 0),
    ("ZZZZZ•HOLLOW•OAK", 2),
];

/// An event of a transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Event {
    /// One of [`OPERATIONS`].
    pub(super) operation: &'static str,
    /// An index in [`KNOWN`]; `None` is the rune that this transaction etches.
    rune: Option<usize>,
    amount: Option<u128>,
    vout: Option<u16>,
    address: Option<u64>,
    receiver: Option<u64>,
}

/// The events of the transaction with this key, by ascending event index. There is always at least one.
pub(super) fn events(chain: &Chain, key: u64) -> Vec<Event> {
    let chance = &mut Stream::new(mix2(chain.seed, key));
    if is_wide(key) {
        let pairs = 33 + chance.below(8);
        return transfer(chance, pairs as u16);
    }
    // Each height has 64 rune numbers, so only the first 64 transactions of an original block may etch.
    let may_etch = (key as u32) < 64;
    match chance.below(32) {
        0 if may_etch => {
            let etched = Event {
                operation: "etching",
                ..Event::default()
            };
            match chance.below(2) {
                0 => vec![etched, receive(chance, None, 1)],
                _ => vec![etched],
            }
        }
        7 => vec![burn(chance, None, None)],
        kind @ 0..=11 => {
            let rune = pick_rune(chance);
            let received = receive(chance, rune, 0);
            let minted = Event {
                operation: "mint",
                vout: None,
                address: None,
                ..received
            };
            match kind {
                0..7 => vec![minted, received],
                _ => vec![received],
            }
        }
        _ => {
            let pairs = 1 + chance.below(5);
            transfer(chance, pairs as u16)
        }
    }
}

fn transfer(chance: &mut Stream, pairs: u16) -> Vec<Event> {
    let mut events = Vec::new();
    let sender = pick_address(chance);
    let rune = pick_rune(chance);
    for vout in 0..pairs {
        let rune = match chance.below(4) {
            0 => pick_rune(chance),
            _ => rune,
        };
        let received = receive(chance, rune, vout);
        let sent = Event {
            operation: "send",
            address: Some(sender),
            receiver: received.address,
            ..received
        };
        events.extend([received, sent]);
    }
    for vout in [None, Some(pairs)] {
        if chance.below(8) == 0 {
            events.push(burn(chance, vout, Some(sender)));
        }
    }
    events
}

fn receive(chance: &mut Stream, rune: Option<usize>, vout: u16) -> Event {
    Event {
        operation: "receive",
        rune,
        amount: Some(pick_amount(chance)),
        vout: Some(vout),
        address: Some(pick_address(chance)),
        receiver: None,
    }
}

fn burn(chance: &mut Stream, vout: Option<u16>, address: Option<u64>) -> Event {
    Event {
        operation: "burn",
        rune: pick_rune(chance),
        amount: Some(pick_amount(chance)),
        vout,
        address,
        receiver: None,
    }
}

const fn pick_rune(chance: &mut Stream) -> Option<usize> {
    // The first rune is by far the most active one, as on the real chain.
    match chance.below(3) {
        0 => Some(0),
        _ => Some(chance.below(KNOWN.len() as u64) as usize),
    }
}

/// One of 700 addresses, so that addresses recur.
const fn pick_address(chance: &mut Stream) -> u64 {
    chance.below(700)
}

/// Mostly small amounts; one in sixteen exceeds a u64.
const fn pick_amount(chance: &mut Stream) -> u128 {
    match chance.below(16) {
        0 => (chance.next() as u128 | 1 << 63) << 20,
        1..=4 => chance.below(1_000_000_000_000) as u128 + 1,
        _ => chance.below(10_000) as u128 + 1,
    }
}

/// A rune of [`KNOWN`]: its id, its number, its spaced name and its divisibility.
pub(super) fn known(rune: usize) -> (String, u64, String, u8) {
    let (spaced, divisibility) = KNOWN[rune];
    let id = match rune {
        0 => "1:0".to_owned(),
        _ => format!("{}:{}", ORIGIN - 11 * rune as u32, 3 + 7 * rune),
    };
    (id, rune as u64, spaced.to_owned(), divisibility)
}

/// An event of a transaction as an item of a list.
pub(super) fn item(chain: &Chain, block: &Block, (key, index): Placed, event: &Event) -> Value {
    let tx_id = chain.tx_id(key);
    let (id, number, spaced, divisibility) = match event.rune {
        Some(rune) => known(rune),
        None => {
            let number = 100 + ((key >> 32) - u64::from(ORIGIN)) * 64 + (key & 0xffff);
            let id = format!("{}:{index}", block.height);
            let chance = mix2(chain.seed ^ 0x6e61_6d65, key);
            (id, number, etched_name(chance), (chance % 9) as u8)
        }
    };
    let name = spaced.replace('•', "");
    let mut item = json!({
        "rune": { "id": id, "number": number, "name": name, "spaced_name": spaced },
        "operation": event.operation,
        "location": {
            "block_hash": chain.hash(block),
            "block_height": block.height,
            "tx_id": tx_id,
            "tx_index": index,
            "timestamp": block.timestamp,
        },
    });
    if let Some(vout) = event.vout {
        item["location"]["vout"] = vout.into();
        item["location"]["output"] = format!("{tx_id}:{vout}").into();
    }
    if let Some(identity) = event.address {
        item["address"] = address(identity).into();
    }
    if let Some(identity) = event.receiver {
        item["receiver_address"] = address(identity).into();
    }
    if let Some(amount) = event.amount {
        item["amount"] = decimal(amount, divisibility).into();
    }
    item
}

/// A name of 13 to 18 letters, with one to three bullets in it.
fn etched_name(chance: u64) -> String {
    let mut chance = Stream::new(chance);
    let length = 13 + chance.below(6);
    let gap = 4 + chance.below(5);
    let mut name = String::new();
    for position in 0..length {
        if position > 0 && position % gap == 0 {
            name.push('•');
        }
        name.push(char::from(b'A' + chance.below(26) as u8));
    }
    name
}

#[cfg(test)]
mod tests;
