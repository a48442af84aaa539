//! Configured request rates: how many requests a key may send per minute and per
//! second.

use std::num::NonZeroU32;

use serde::{Serialize, Serializer};

/// The number of requests allowed in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Any number of requests.
    Unlimited,
    /// At most this many requests.
    Limited(NonZeroU32),
}

/// The rates of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Requests in any 60 seconds.
    pub per_minute: Rate,
    /// Requests in any second.
    pub per_second: Rate,
}

impl Rate {
    /// How the configuration spells the absence of a limit.
    pub const UNLIMITED: &str = "unlimited";

    /// The number of requests; `None` for any number.
    pub fn limit(self) -> Option<u32> {
        match self {
            Self::Unlimited => None,
            Self::Limited(limit) => Some(limit.get()),
        }
    }

    /// The lower of two rates.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Limited(one), Self::Limited(other)) => Self::Limited(one.min(other)),
            (Self::Unlimited, rate) | (rate, Self::Unlimited) => rate,
        }
    }
}

impl Rates {
    /// No limit per minute or per second.
    pub const UNLIMITED: Self = Self {
        per_minute: Rate::Unlimited,
        per_second: Rate::Unlimited,
    };

    /// Rates for a test; 0 is any number.
    #[cfg(test)]
    pub(crate) fn of(per_minute: u32, per_second: u32) -> Self {
        let rate = |limit| NonZeroU32::new(limit).map_or(Rate::Unlimited, Rate::Limited);
        Self {
            per_minute: rate(per_minute),
            per_second: rate(per_second),
        }
    }

    /// Of each period, the lower rate.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        Self {
            per_minute: self.per_minute.stricter(other.per_minute),
            per_second: self.per_second.stricter(other.per_second),
        }
    }
}

impl From<NonZeroU32> for Rate {
    fn from(limit: NonZeroU32) -> Self {
        Self::Limited(limit)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unlimited => to.serialize_str(Self::UNLIMITED),
            Self::Limited(limit) => limit.serialize(to),
        }
    }
}
