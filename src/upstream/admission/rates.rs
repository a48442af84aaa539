//! How many requests a key may send in a minute and in a second.

use std::num::NonZeroU32;

use serde::{Serialize, Serializer};

/// How many requests a window of time takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Any number.
    Unlimited,
    /// So many at the most.
    Limited(NonZeroU32),
}

/// How many requests a key may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// In any 60 seconds.
    pub per_minute: Rate,
    /// In any second.
    pub per_second: Rate,
}

impl Rate {
    /// How it is written in the configuration where there is no limit.
    pub const UNLIMITED: &str = "unlimited";

    /// A limit, as a number of requests.
    pub fn limit(self) -> Option<u32> {
        match self {
            Self::Unlimited => None,
            Self::Limited(most) => Some(most.get()),
        }
    }

    /// The one of two that takes fewer.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Limited(one), Self::Limited(other)) => Self::Limited(one.min(other)),
            (Self::Unlimited, rate) | (rate, Self::Unlimited) => rate,
        }
    }
}

impl Rates {
    /// No limit at all.
    pub const UNLIMITED: Self = Self {
        per_minute: Rate::Unlimited,
        per_second: Rate::Unlimited,
    };

    /// What satisfies both.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        Self {
            per_minute: self.per_minute.stricter(other.per_minute),
            per_second: self.per_second.stricter(other.per_second),
        }
    }
}

impl From<NonZeroU32> for Rate {
    fn from(most: NonZeroU32) -> Self {
        Self::Limited(most)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unlimited => to.serialize_str(Self::UNLIMITED),
            Self::Limited(most) => most.serialize(to),
        }
    }
}
