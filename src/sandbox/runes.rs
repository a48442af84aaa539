//! Rune activity: the events of a transaction, and the bytes of an item.
//!
//! `api` uses it for both lists. One function writes items, so an event has the same bytes in the list of its block and
//! of its transaction. Invariants: members are in the reference's order, and absent (not null) where it omits them; an
//! amount has exactly as many fraction digits as the rune's divisibility; runes etched outside the block are from earlier
//! heights. Balances that add up, and supply, are not modelled.

use std::fmt::Write;

use super::chain::{Block, Chain, Placed};
use super::mix::{Stream, mix2, push_address};

/// The kinds of activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Etching,
    Mint,
    Burn,
    Send,
    Receive,
}

impl Operation {
    /// All kinds, in the reference's order.
    pub(super) const ALL: [Self; 5] = [
        Self::Etching,
        Self::Mint,
        Self::Burn,
        Self::Send,
        Self::Receive,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Etching => "etching",
            Self::Mint => "mint",
            Self::Burn => "burn",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

/// The rune of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// An index in [`KNOWN`].
    Known(usize),
    /// The rune that this transaction etches.
    Etched,
}

/// An event of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) operation: Operation,
    subject: Subject,
    amount: Option<u128>,
    vout: Option<u16>,
    address: Option<u64>,
    receiver: Option<u64>,
}

impl Event {
    const fn bare(operation: Operation, subject: Subject) -> Self {
        Self {
            operation,
            subject,
            amount: None,
            vout: None,
            address: None,
            receiver: None,
        }
    }
}

/// Runes etched before the model's first block: spaced name and divisibility.
const KNOWN: [(&str, u8); 20] = [
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

/// The location of an event.
pub(super) struct Site<'a> {
    pub(super) chain: &'a Chain,
    pub(super) block: &'a Block,
    pub(super) block_hash: &'a str,
    pub(super) tx_id: &'a str,
    pub(super) placed: Placed,
}

/// Fills `out` with the events of a transaction, by ascending event index. There is always at least one.
pub(super) fn events(chain: &Chain, placed: Placed, out: &mut Vec<Event>) {
    out.clear();
    let key = placed.key;
    let mut chance = Stream::new(mix2(chain.seed(), key.word()));
    if chain.is_wide(key) {
        let pairs = 33 + chance.below(8) as u16;
        transfer(&mut chance, pairs, out);
        return;
    }
    // Each height has 64 rune numbers, so only its first 64 transactions may etch.
    let may_etch = key.fork == 0 && key.number < 64;
    match chance.below(32) {
        0 if may_etch => etching(&mut chance, out),
        0..=6 => mint(&mut chance, out),
        7 => out.push(burn(&mut chance, None)),
        8..=11 => {
            let subject = pick_rune(&mut chance);
            out.push(receive(&mut chance, subject, 0));
        }
        _ => {
            let pairs = 1 + chance.below(5) as u16;
            transfer(&mut chance, pairs, out);
        }
    }
}

fn etching(chance: &mut Stream, out: &mut Vec<Event>) {
    out.push(Event::bare(Operation::Etching, Subject::Etched));
    if chance.below(2) == 0 {
        out.push(receive(chance, Subject::Etched, 1));
    }
}

fn mint(chance: &mut Stream, out: &mut Vec<Event>) {
    let subject = pick_rune(chance);
    let received = receive(chance, subject, 0);
    let minted = Event {
        amount: received.amount,
        ..Event::bare(Operation::Mint, subject)
    };
    out.extend([minted, received]);
}

fn transfer(chance: &mut Stream, pairs: u16, out: &mut Vec<Event>) {
    let sender = pick_address(chance);
    let subject = pick_rune(chance);
    for vout in 0..pairs {
        let subject = match chance.below(4) {
            0 => pick_rune(chance),
            _ => subject,
        };
        let received = receive(chance, subject, vout);
        let sent = Event {
            operation: Operation::Send,
            address: Some(sender),
            receiver: received.address,
            ..received
        };
        out.extend([received, sent]);
    }
    for vout in [None, Some(pairs)] {
        if chance.below(8) == 0 {
            out.push(Event {
                address: Some(sender),
                ..burn(chance, vout)
            });
        }
    }
}

fn receive(chance: &mut Stream, subject: Subject, vout: u16) -> Event {
    Event {
        amount: Some(pick_amount(chance)),
        vout: Some(vout),
        address: Some(pick_address(chance)),
        ..Event::bare(Operation::Receive, subject)
    }
}

fn burn(chance: &mut Stream, vout: Option<u16>) -> Event {
    let subject = pick_rune(chance);
    Event {
        amount: Some(pick_amount(chance)),
        vout,
        ..Event::bare(Operation::Burn, subject)
    }
}

const fn pick_rune(chance: &mut Stream) -> Subject {
    // The first rune is by far the most active one, as on the real chain.
    if chance.below(3) == 0 {
        Subject::Known(0)
    } else {
        Subject::Known(chance.below(KNOWN.len() as u64) as usize)
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

/// Appends an item as JSON.
pub(super) fn push_item(out: &mut String, site: &Site<'_>, event: &Event) {
    let divisibility = push_rune(out, site, event.subject);
    let Site {
        block,
        block_hash,
        tx_id,
        placed,
        ..
    } = site;
    // Writing into a string cannot fail.
    let _ = write!(
        out,
        ",\"operation\":\"{}\",\"location\":{{\"block_hash\":\"{block_hash}\",\"block_height\":{},\
         \"tx_id\":\"{tx_id}\",\"tx_index\":{},\"timestamp\":{}",
        event.operation.as_str(),
        block.height,
        placed.index,
        block.timestamp,
    );
    if let Some(vout) = event.vout {
        let _ = write!(out, ",\"vout\":{vout},\"output\":\"{tx_id}:{vout}\"");
    }
    out.push('}');
    for (member, identity) in [
        ("address", event.address),
        ("receiver_address", event.receiver),
    ] {
        if let Some(identity) = identity {
            let _ = write!(out, ",\"{member}\":\"");
            push_address(out, identity);
            out.push('"');
        }
    }
    if let Some(amount) = event.amount {
        out.push_str(",\"amount\":\"");
        push_decimal(out, amount, divisibility);
        out.push('"');
    }
    out.push('}');
}

/// Appends the opening brace and the rune; returns its divisibility.
fn push_rune(out: &mut String, site: &Site<'_>, subject: Subject) -> u8 {
    let origin = site.chain.origin();
    let (id, number, spaced, divisibility) = match subject {
        Subject::Known(0) => ("1:0".to_owned(), 0, KNOWN[0].0.to_owned(), KNOWN[0].1),
        Subject::Known(index) => {
            let (spaced, divisibility) = KNOWN[index];
            let height = origin.saturating_sub(11 * index as u32);
            (
                format!("{height}:{}", 3 + 7 * index),
                index as u64,
                spaced.to_owned(),
                divisibility,
            )
        }
        Subject::Etched => {
            let key = site.placed.key;
            let number = 100 + u64::from(key.height - origin) * 64 + u64::from(key.number);
            let id = format!("{}:{}", site.block.height, site.placed.index);
            let chance = mix2(site.chain.seed() ^ 0x6e61_6d65, key.word());
            (id, number, etched_name(chance), (chance % 9) as u8)
        }
    };
    let _ = write!(
        out,
        "{{\"rune\":{{\"id\":\"{id}\",\"number\":{number},\"name\":\""
    );
    out.extend(spaced.chars().filter(|letter| *letter != '•'));
    let _ = write!(out, "\",\"spaced_name\":\"{spaced}\"}}");
    divisibility
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

/// Appends `raw` with its last `digits` digits after the decimal point; without a point if `digits` is zero.
pub(super) fn push_decimal(out: &mut String, raw: u128, digits: u8) {
    let digits = usize::from(digits);
    let text = format!("{raw:0>width$}", width = digits + 1);
    let (whole, fraction) = text.split_at(text.len() - digits);
    out.push_str(whole);
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
}

#[cfg(test)]
mod tests;
