//! Stored responses in the engine, and the locks of their fetches.
//!
//! One script looks a response up and, where there is none, lets one process fetch it:
//! [`SharedEntries::look_up`]. The scripts know nothing of what a value means.

pub mod model;

use super::EngineFuture;

/// The script that looks up a response.
pub const GET: &str = include_str!("scripts/get.lua");
/// The script that stores a response.
pub const PUT: &str = include_str!("scripts/put.lua");
/// The script that gives up a lock.
pub const GIVE_UP: &str = include_str!("scripts/give_up.lua");

/// The keys of a response in the engine. Both are in one slot of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryName {
    /// The key of the response.
    pub value: String,
    /// The key of its lock.
    pub lock: String,
}

impl EntryName {
    /// The keys of the response with this digest.
    pub fn new(prefix: &str, digest: [u8; 16]) -> Self {
        let digest = u128::from_be_bytes(digest);
        let value = format!("{{{prefix}:e:{digest:032x}}}");
        let lock = format!("{value}:l");
        Self { value, lock }
    }
}

/// Tells one fetch from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillToken(pub u128);

impl FillToken {
    /// The token as the engine has it.
    pub fn text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// Reads a token.
    pub fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let token = Self(u128::from_str_radix(text, 16).ok()?);
        (token.text() == text).then_some(token)
    }
}

/// A request for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookUp {
    /// The response that was found to be of no use, if there is one.
    pub unusable: Option<FillToken>,
    /// The token of the fetch that may follow.
    pub token: FillToken,
    /// How long that fetch is locked, in milliseconds; 0 if it is not.
    pub lock_ms: u64,
}

impl LookUp {
    /// The arguments of the script.
    pub fn arguments(&self) -> [String; 3] {
        let unusable = self.unusable.map_or_else(String::new, FillToken::text);
        [unusable, self.token.text(), self.lock_ms.to_string()]
    }
}

/// The engine's reply to a [`LookUp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookedUp {
    /// The time by the clock of the engine, in milliseconds.
    pub now_ms: u64,
    /// What is there.
    pub found: FoundEntry,
}

/// What the engine has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundEntry {
    /// A response.
    Have {
        /// Its id: the token of its fetch.
        id: FillToken,
        /// Its value.
        value: Vec<u8>,
    },
    /// Nothing. This process has the lock.
    Lead,
    /// Nothing. Another process has the lock.
    Follow,
    /// Nothing, and no lock: none was wanted, or what was fetched last is not stored.
    None,
}

/// A response to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutEntry {
    /// The token of its fetch.
    pub token: FillToken,
    /// The generation of the journal when its fetch began.
    pub generation: String,
    /// The last record then, in a form in which later is greater.
    pub record: String,
    /// When it was received, in milliseconds by the clock of the engine.
    pub received_ms: u64,
    /// For how long it is stored, in milliseconds.
    pub stay_ms: u64,
    /// Its value.
    pub value: Vec<u8>,
}

impl PutEntry {
    /// The arguments of the script before the value.
    pub fn arguments(&self) -> [String; 5] {
        [
            self.token.text(),
            self.generation.clone(),
            self.record.clone(),
            self.received_ms.to_string(),
            self.stay_ms.to_string(),
        ]
    }
}

/// A lock that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The token of its fetch.
    pub token: FillToken,
    /// For how long others fetch without the lock, in milliseconds, because the response is
    /// not stored; 0 if the next one gets the lock.
    pub unlocked_ms: u64,
}

impl GivenUp {
    /// The arguments of the script.
    pub fn arguments(&self) -> [String; 2] {
        [self.token.text(), self.unlocked_ms.to_string()]
    }
}

/// Keeps responses for all processes.
pub trait SharedEntries: Send + Sync {
    /// Looks up a response. Where there is none, one process leads its fetch.
    fn look_up<'t>(
        &'t self,
        name: &'t EntryName,
        look_up: &'t LookUp,
    ) -> EngineFuture<'t, LookedUp>;

    /// Stores a response, unless a later one is stored. Returns whether it did. The lock is
    /// given up in any case.
    fn put<'t>(&'t self, name: &'t EntryName, entry: &'t PutEntry) -> EngineFuture<'t, bool>;

    /// Gives up the lock of a fetch. Returns whether it was still there.
    fn give_up<'t>(&'t self, name: &'t EntryName, given_up: GivenUp) -> EngineFuture<'t, bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_keys_are_in_one_slot() {
        let name = EntryName::new("ordgate", [0xab; 16]);
        assert_eq!(name.value, format!("{{ordgate:e:{}}}", "ab".repeat(16)));
        assert_eq!(name.lock, format!("{}:l", name.value));
    }

    #[test]
    fn tokens_are_read_as_they_are_written() {
        for token in [0, 1, u128::MAX].map(FillToken) {
            assert_eq!(FillToken::read(token.text().as_bytes()), Some(token));
        }
        for text in ["", "0", "+0000000000000000000000000000001", "x"] {
            assert_eq!(FillToken::read(text.as_bytes()), None, "{text}");
        }
    }
}
