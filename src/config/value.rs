//! Values of proxy.toml that have bounds or a unit. Each refuses what is out of its bounds,
//! and says what is allowed; the schema says it as `x-allowed`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, IntoDeserializer as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units;
use crate::upstream::Rate;

/// Milliseconds of a day and of a year of 365 days.
pub(super) const DAY: u64 = 86_400_000;
pub(super) const YEAR: u64 = 365 * DAY;

/// What a key of a number, a time or a size may have.
#[derive(Deserialize)]
#[serde(untagged)]
enum Raw {
    Number(u64),
    Text(String),
    Other(de::IgnoredAny),
}

impl Raw {
    /// What came, as a message says it.
    fn shown(&self) -> String {
        match self {
            Self::Number(number) => format!("{number} came"),
            Self::Text(text) => format!("{:?} came", text.chars().take(60).collect::<String>()),
            Self::Other(_) => "something else came".to_owned(),
        }
    }
}

/// A type with bounds: how it is read, written and described.
macro_rules! bounded {
    (
        $(#[$about:meta])*
        $name:ident($inner:ty), $json:literal, $read:expr, $write:expr, $allowed:expr
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name<const MIN: u64, const MAX: u64>(pub $inner);

        impl<const MIN: u64, const MAX: u64> $name<MIN, MAX> {
            fn allowed() -> String {
                let (allowed, write): (&str, fn(u64) -> String) = ($allowed, $write);
                format!("{allowed}, from {} to {}", write(MIN), write(MAX))
            }
        }

        impl<const MIN: u64, const MAX: u64> Deref for $name<MIN, MAX> {
            type Target = $inner;

            fn deref(&self) -> &$inner {
                &self.0
            }
        }

        impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for $name<MIN, MAX> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let read: fn(&Raw) -> Option<u64> = $read;
                let raw = Raw::deserialize(from)?;
                match read(&raw).filter(|number| (MIN..=MAX).contains(number)) {
                    Some(number) => Ok(Self::of(number)),
                    None => Err(de::Error::custom(format!(
                        "{}; allowed is {}",
                        raw.shown(),
                        Self::allowed()
                    ))),
                }
            }
        }

        impl<const MIN: u64, const MAX: u64> JsonSchema for $name<MIN, MAX> {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": $json, "x-allowed": Self::allowed()})
            }
        }
    };
}

bounded!(
    /// A duration, from `MIN` to `MAX` milliseconds: `"10s"`.
    Time(Duration), "string",
    |raw| match raw {
        Raw::Text(text) => units::parse(text).and_then(|time| time.as_millis().try_into().ok()),
        Raw::Number(_) | Raw::Other(_) => None,
    },
    |millis| units::format(Duration::from_millis(millis)),
    units::DURATION
);
bounded!(
    /// A number of bytes, from `MIN` to `MAX`: `"256MiB"`.
    Size(u64), "string",
    |raw| match raw {
        Raw::Text(text) => units::parse_size(text),
        Raw::Number(bytes) => Some(*bytes),
        Raw::Other(_) => None,
    },
    units::format_size,
    units::SIZE
);
bounded!(
    /// A whole number, from `MIN` to `MAX`.
    Count(u64), "integer",
    |raw| match raw {
        Raw::Number(number) => Some(*number),
        Raw::Text(_) | Raw::Other(_) => None,
    },
    |number| number.to_string(),
    "a whole number"
);

impl<const MIN: u64, const MAX: u64> Time<MIN, MAX> {
    const fn of(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// So many seconds.
    pub(super) const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl<const MIN: u64, const MAX: u64> Size<MIN, MAX> {
    const fn of(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl<const MIN: u64, const MAX: u64> Count<MIN, MAX> {
    const fn of(number: u64) -> Self {
        Self(number)
    }

    /// The number as one of 32 bits.
    pub(super) fn small(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// The number as one that is not 0, at least 1.
    pub(super) fn positive(self) -> NonZeroU32 {
        NonZeroU32::new(self.small()).unwrap_or(NonZeroU32::MIN)
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Time<MIN, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        units::serialize(self, to)
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Size<MIN, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        units::serialize_size(self, to)
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Count<MIN, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

/// A string that a type reads and writes itself: an address, a network, a field's name.
pub(super) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in crate::config) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(in crate::config) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// One value, or a list of them. One is written without brackets.
#[derive(Clone, Debug, PartialEq)]
pub struct OneOrMore<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Either<T> {
            type Value = Vec<T>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
                Ok(vec![T::deserialize(text.into_deserializer())?])
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
                Deserialize::deserialize(de::value::SeqAccessDeserializer::new(list))
            }
        }

        from.deserialize_any(Either(PhantomData)).map(Self)
    }
}

impl<T: Serialize> Serialize for OneOrMore<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.serialize(to),
            list => list.serialize(to),
        }
    }
}

impl<T: JsonSchema> JsonSchema for OneOrMore<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMore{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({"anyOf": [one, {"type": "array", "items": one}]})
    }
}

/// Reads a number of requests, or `"unlimited"`.
pub(super) fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Rate>, D::Error> {
    let raw = Raw::deserialize(from)?;
    let number = match &raw {
        Raw::Text(text) if text == Rate::UNLIMITED => return Ok(Some(Rate::Unlimited)),
        Raw::Number(number @ 1..=1_000_000) => u32::try_from(*number).ok(),
        Raw::Number(_) | Raw::Text(_) | Raw::Other(_) => None,
    };
    let limit = number.and_then(NonZeroU32::new).map(Rate::Limited);
    limit.map(Some).ok_or_else(|| {
        de::Error::custom(format!(
            "{}; allowed is a whole number from 1 to 1000000, or \"unlimited\"",
            raw.shown()
        ))
    })
}
