//! The faults of the upstream, one for each request: what is sent instead of the
//! right answer, and what happens to the connection.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use ordgate::clock::Clock;

use super::world::{HOSTILE, Kind};
use crate::dice::Dice;

/// What the gateway waits for a first byte, and for a whole answer.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(1);
pub(crate) const WHOLE: Duration = Duration::from_secs(2);
/// How long the front keeps a request that it does not answer.
pub(crate) const HELD: Duration = WHOLE.saturating_mul(3);
/// How long a silent connection stays open.
pub(crate) const OPEN: Duration = Duration::from_secs(8);
/// How long a body may be silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// A fault, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Chunked,
    Interim,
    CloseAfter,
    SlowFirstByte,
    Drip,
    CloseBefore,
    ResetBefore,
    ResetInHead,
    ResetAfterHead,
    Truncate,
    TooLong,
    TooShort,
    TwoLengths,
    Surplus,
    BadChunk,
    Garbage,
    BadJson,
    Html,
    Coded,
    Oversize,
    Redirect,
    Failed(u16),
    Throttled,
    Refused,
    Echo,
    /// The body stops in the middle.
    Stall,
    /// The request is not answered, and the connection is not closed.
    Mute,
    /// Nothing on the connection is answered any more, and nothing read; it is
    /// not closed.
    Silent,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Close,
    Reset,
    /// It is neither read nor closed for [`OPEN`].
    Silent,
}

/// Each as often as it stands here. A refused key is rarer still, since it rests
/// for a minute then.
const FAULTS: [Fault; 45] = [
    Fault::Chunked,
    Fault::Chunked,
    Fault::Interim,
    Fault::CloseAfter,
    Fault::CloseAfter,
    Fault::SlowFirstByte,
    Fault::SlowFirstByte,
    Fault::Drip,
    Fault::Drip,
    Fault::CloseBefore,
    Fault::ResetBefore,
    Fault::ResetBefore,
    Fault::ResetInHead,
    Fault::ResetAfterHead,
    Fault::Truncate,
    Fault::TooLong,
    Fault::TooShort,
    Fault::TwoLengths,
    Fault::Surplus,
    Fault::BadChunk,
    Fault::Garbage,
    Fault::BadJson,
    Fault::Html,
    Fault::Coded,
    Fault::Oversize,
    Fault::Redirect,
    Fault::Failed(500),
    Fault::Failed(502),
    Fault::Failed(503),
    Fault::Failed(503),
    Fault::Throttled,
    Fault::Throttled,
    Fault::Echo,
    Fault::Stall,
    Fault::Stall,
    Fault::Stall,
    Fault::Stall,
    Fault::Stall,
    Fault::Stall,
    Fault::Mute,
    Fault::Silent,
    Fault::Silent,
    Fault::Silent,
    Fault::Silent,
    Fault::Silent,
];

/// An answer that is to be sent.
pub(crate) struct Message {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    /// Its values of `content-length`.
    pub(crate) lengths: Vec<usize>,
    pub(crate) body: Bytes,
}

/// The right answer, with the request it is for.
#[derive(Clone)]
pub(crate) struct Right {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) key: String,
    pub(crate) target: String,
}

impl Fault {
    /// A random fault: every other time one of a kind that is missing, if any.
    pub(crate) fn of(dice: &mut Dice, is_missing: impl Fn(Kind) -> bool) -> Self {
        let lasting = [
            (Kind::SilentConnection, Self::Silent),
            (Kind::StalledBody, Self::Stall),
        ];
        let missing = lasting.into_iter().find(|(kind, _)| is_missing(*kind));
        if let Some((_, fault)) = missing.filter(|_| dice.percent(50)) {
            return fault;
        }
        match dice.below(400) {
            0 => Self::Refused,
            _ => *dice.pick(&FAULTS),
        }
    }

    /// Its name.
    pub(crate) fn word(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// What is sent: the right answer, or what takes its place.
    pub(crate) fn message(self, right: &Right, dice: &mut Dice) -> Message {
        let length = right.body.len();
        match self {
            Self::TooLong => right.of_lengths(&[length + 10]),
            Self::TooShort => right.of_lengths(&[length / 2]),
            Self::TwoLengths => right.of_lengths(&[length / 2, length]),
            Self::BadJson => json(200, format!("{{\"token\":{HOSTILE}")),
            Self::Html => {
                let body = format!("<html>{HOSTILE}</html>");
                Message::new(200, "text/html", body)
            }
            Self::Coded => {
                json(200, format!("\x1f{HOSTILE}")).with("content-encoding", "gzip".to_owned())
            }
            Self::Oversize => Message {
                lengths: vec![99_999_999_999],
                ..json(200, format!("{{\"{HOSTILE}\":\""))
            },
            Self::Redirect => {
                let location = format!("{}?{HOSTILE}", right.target);
                Message::new(302, "text/plain", HOSTILE).with("location", location)
            }
            Self::Failed(status) => {
                let message = json(status, format!("{{\"error\":\"{HOSTILE}\"}}"));
                match status {
                    503 => when(dice, message),
                    _ => message,
                }
            }
            Self::Throttled => when(dice, Message::new(429, "text/plain", HOSTILE)),
            Self::Refused => Message::new(401, "text/plain", HOSTILE),
            Self::Echo => {
                let body = format!("{{\"token\":{{\"ticker\":\"{}\"}}}}", right.key);
                json(200, body)
            }
            Self::None
            | Self::Chunked
            | Self::Interim
            | Self::CloseAfter
            | Self::SlowFirstByte
            | Self::Drip
            | Self::CloseBefore
            | Self::ResetBefore
            | Self::ResetInHead
            | Self::ResetAfterHead
            | Self::Truncate
            | Self::Surplus
            | Self::BadChunk
            | Self::Garbage
            | Self::Mute
            | Self::Stall
            | Self::Silent => right.of_lengths(&[length]),
        }
    }
}

impl Right {
    /// The right answer, with these values of `content-length`.
    fn of_lengths(&self, lengths: &[usize]) -> Message {
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        let fields = self
            .fields
            .iter()
            .filter(|(name, _)| *name != "content-length");
        Message {
            status: self.status,
            fields: fields.map(text).collect(),
            lengths: lengths.to_vec(),
            body: self.body.clone(),
        }
    }
}

impl Message {
    fn new(status: u16, kind: &str, body: impl Into<String>) -> Self {
        let body = Bytes::from(body.into());
        Self {
            status,
            fields: vec![("content-type".to_owned(), kind.to_owned())],
            lengths: vec![body.len()],
            body,
        }
    }

    fn with(mut self, name: &str, value: String) -> Self {
        self.fields.push((name.to_owned(), value));
        self
    }
}

fn json(status: u16, body: String) -> Message {
    Message::new(status, "application/json; charset=utf-8", body)
}

/// A message with `retry-after` in one of its forms, some of which are none, or
/// without it.
fn when(dice: &mut Dice, message: Message) -> Message {
    let clock = Clock::machine();
    let soon = clock.wall(clock.now()) + Duration::from_secs(dice.between(0, 2));
    let date = httpdate::fmt_http_date(soon);
    // Such as `Sun, 06 Nov 1994 08:49:37 GMT`.
    let parts: Vec<_> = date
        .split([' ', ','])
        .filter(|part| !part.is_empty())
        .collect();
    let &[name, day, month, year, time, _] = &parts[..] else {
        panic!("{date}");
    };
    let value = match dice.below(10) {
        0 => return message,
        1 => "0".to_owned(),
        2 => "soon".to_owned(),
        3 => "-5".to_owned(),
        4 => "1.5".to_owned(),
        5 => date,
        // The obsolete forms (RFC 9110 section 5.6.7).
        6 => {
            let long = [
                "Monday",
                "Tuesday",
                "Wednesday",
                "Thursday",
                "Friday",
                "Saturday",
                "Sunday",
            ];
            let long = long
                .into_iter()
                .find(|long| long.starts_with(name))
                .unwrap();
            format!("{long}, {day}-{month}-{} {time} GMT", &year[2..])
        }
        7 => {
            let day = day.trim_start_matches('0');
            format!("{name} {month} {day:>2} {time} {year}")
        }
        _ => dice.between(1, 2).to_string(),
    };
    message.with("retry-after", value)
}
