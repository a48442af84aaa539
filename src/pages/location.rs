//! Where an item stands on the chain, as far as we need it: its block and its
//! transaction. Called by [`Page::read`](super::Page::read), once an item.
//!
//! An item's other members are skipped without recursion, whatever they are.
//!
//! Deliberately absent: derived readers of the two objects. They would take a
//! list for an object, and then an item would be located that has no location.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{Block, Hash, hash};

/// An item's place.
pub(super) struct Located {
    pub(super) block: Block,
    pub(super) tx: Hash,
}

/// An item's place; `None` where the item is no object, or its location lacks
/// one of the three members that count, has one twice, or has one that is not
/// of its form.
pub(super) fn locate(item: &str) -> Option<Located> {
    let item: Item = serde_json::from_str(item).ok()?;
    Some(item.0)
}

struct Item(Located);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ItemKey {
    Location,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an activity item")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Item, A::Error> {
                let mut location = None;
                while let Some(key) = members.next_key()? {
                    match key {
                        ItemKey::Location => once(&mut location, members.next_value()?)?,
                        ItemKey::Other => skip(&mut members)?,
                    }
                }
                let location = location.ok_or_else(|| A::Error::missing_field("location"))?;
                Ok(Item(location))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum LocationKey {
    BlockHash,
    BlockHeight,
    TxId,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Located;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a location")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Located, A::Error> {
                let (mut hash, mut height, mut tx) = (None, None, None);
                while let Some(key) = members.next_key()? {
                    match key {
                        LocationKey::BlockHash => once(&mut hash, members.next_value()?)?,
                        LocationKey::BlockHeight => once(&mut height, members.next_value()?)?,
                        LocationKey::TxId => once(&mut tx, members.next_value()?)?,
                        LocationKey::Other => skip(&mut members)?,
                    }
                }
                let missing = A::Error::missing_field;
                let Digits(hash) = hash.ok_or_else(|| missing("block_hash"))?;
                let height = height.ok_or_else(|| missing("block_height"))?;
                let Digits(tx) = tx.ok_or_else(|| missing("tx_id"))?;
                Ok(Located {
                    block: Block { height, hash },
                    tx,
                })
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A hash that is read where it stands, without a string of its own.
struct Digits(Hash);

impl<'de> Deserialize<'de> for Digits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Digits;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 hex digits")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Digits, E> {
                let hash = hash(text).ok_or_else(|| E::custom("not 64 hex digits"))?;
                Ok(Digits(hash))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Fills a slot. Of a member that is there twice, no two readers take the same.
fn once<T, E: Error>(slot: &mut Option<T>, value: T) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::custom("a member is there twice")),
    }
}

pub(super) fn skip<'de, A: MapAccess<'de>>(members: &mut A) -> Result<(), A::Error> {
    let IgnoredAny = members.next_value()?;
    Ok(())
}
