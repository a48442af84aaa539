//! The faults of the upstream, one for a request: what is sent in place of the
//! right answer, or done to it, and what becomes of the connection.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use ordgate::clock::Clock;
use tokio::time::{sleep, timeout};

use crate::dice::Dice;
use crate::wire::Wire;
use crate::world::HOSTILE;

/// What the gateway waits for a first byte, and for a whole answer.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(1);
pub(crate) const WHOLE: Duration = Duration::from_secs(2);
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
    Stall,
    Mute,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Close,
    Reset,
}

/// Each as often as it stands here. A refused key is rarer still, since it rests
/// for a minute then.
const FAULTS: [Fault; 35] = [
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
    Fault::Mute,
];

/// What the upstream would say, and to whom.
pub(crate) struct Right {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) key: String,
    pub(crate) target: String,
}

impl Fault {
    /// A fault by chance.
    pub(crate) fn of(dice: &mut Dice) -> Self {
        match dice.below(400) {
            0 => Self::Refused,
            _ => *dice.pick(&FAULTS),
        }
    }

    /// The word for it.
    pub(crate) fn word(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Answers with it. A gateway that has gone away meanwhile is what some
    /// faults lead to, and no error.
    pub(crate) async fn play(self, wire: &mut Wire, right: &Right, dice: &mut Dice) -> After {
        let whole = right.bytes();
        let head = whole.len() - right.body.len();
        let (say, after) = match self {
            Self::None => (whole, After::Keep),
            Self::Chunked => (right.chunked("0\r\n\r\n"), After::Keep),
            Self::BadChunk => (right.chunked(&format!("{HOSTILE}\r\n")), After::Close),
            Self::Interim => {
                let early = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
                ([&early[..], &whole].concat(), After::Keep)
            }
            Self::CloseAfter => {
                // The gateway may be about to use the connection again.
                let _ = wire.send(whole).await;
                sleep(Duration::from_millis(dice.between(0, 40))).await;
                return After::Close;
            }
            Self::SlowFirstByte => {
                sleep(FIRST_BYTE.mul_f64(dice.between(5, 130) as f64 / 100.0)).await;
                (whole, After::Keep)
            }
            Self::Drip => {
                let pieces = dice.between(2, 12);
                let pause = WHOLE.mul_f64(dice.between(5, 130) as f64 / 100.0) / pieces as u32;
                for piece in whole.chunks(whole.len().div_ceil(pieces as usize)) {
                    if wire.send(piece).await.is_err() {
                        return After::Close;
                    }
                    sleep(pause).await;
                }
                return After::Keep;
            }
            Self::CloseBefore => (Vec::new(), After::Close),
            Self::ResetBefore => (Vec::new(), After::Reset),
            Self::ResetInHead => (whole[..dice.below(head)].to_vec(), After::Reset),
            Self::ResetAfterHead => (whole[..head].to_vec(), After::Reset),
            Self::Truncate => (whole[..head + right.body.len() / 2].to_vec(), After::Close),
            Self::TooLong => (right.of_length(right.body.len() + 10), After::Close),
            Self::TooShort => (right.of_length(right.body.len() / 2), After::Keep),
            Self::TwoLengths => {
                let two = format!("content-length: {}\r\n", right.body.len() / 2);
                (right.with(200, &two, &right.body), After::Keep)
            }
            Self::Surplus => {
                // An answer that nobody has asked for, behind the right one.
                let body = format!("{{\"token\":{{\"ticker\":\"{HOSTILE}\"}}}}");
                let more = right.with(200, "", body.as_bytes());
                ([whole, more].concat(), After::Keep)
            }
            Self::Garbage => {
                let bytes = (0..dice.between(1, 400)).map(|_| dice.next() as u8);
                (bytes.collect(), After::Close)
            }
            Self::BadJson => {
                let body = format!("{{\"token\":{HOSTILE}");
                (right.with(200, "", body.as_bytes()), After::Keep)
            }
            Self::Html => {
                let body = format!("<html>{HOSTILE}</html>");
                let fields = "content-type: text/html\r\n";
                (with(200, fields, body.as_bytes()), After::Keep)
            }
            Self::Coded => {
                let body = format!("\x1f{HOSTILE}");
                let coding = "content-encoding: gzip\r\n";
                (right.with(200, coding, body.as_bytes()), After::Keep)
            }
            Self::Oversize => {
                let fields = "content-type: application/json\r\ncontent-length: 99999999999\r\n";
                let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n{{\"{HOSTILE}\":\"");
                (head.into_bytes(), After::Keep)
            }
            Self::Redirect => {
                let location = format!("location: {}?{HOSTILE}\r\n", right.target);
                (with(302, &location, HOSTILE.as_bytes()), After::Keep)
            }
            Self::Failed(status) => {
                let mut fields = "content-type: application/json\r\n".to_owned();
                if status == 503 {
                    fields.push_str(&when(dice));
                }
                let body = format!("{{\"error\":\"{HOSTILE}\"}}");
                (with(status, &fields, body.as_bytes()), After::Keep)
            }
            Self::Throttled => (with(429, &when(dice), HOSTILE.as_bytes()), After::Keep),
            Self::Refused => (with(401, "", HOSTILE.as_bytes()), After::Keep),
            Self::Echo => {
                let body = format!("{{\"token\":{{\"ticker\":\"{}\"}}}}", right.key);
                (right.with(200, "", body.as_bytes()), After::Keep)
            }
            Self::Stall | Self::Mute => {
                let begun = &whole[..head + right.body.len() / 2];
                if self == Self::Stall && wire.send(begun).await.is_err() {
                    return After::Close;
                }
                // Until the gateway gives up, and not for ever.
                let gone = async { while wire.more().await {} };
                let _ = timeout(WHOLE * 3, gone).await;
                return After::Close;
            }
        };
        match wire.send(say).await {
            Ok(()) => after,
            Err(_gone) => After::Close,
        }
    }
}

impl Right {
    /// The right answer.
    fn bytes(&self) -> Vec<u8> {
        self.of_length(self.body.len())
    }

    /// The right answer, whose length is said to be this.
    fn of_length(&self, length: usize) -> Vec<u8> {
        let mut head = self.head();
        head.push_str(&format!("content-length: {length}\r\n\r\n"));
        [head.as_bytes(), &self.body].concat()
    }

    /// The right answer in chunks, with this behind the last.
    fn chunked(&self, end: &str) -> Vec<u8> {
        let mut bytes = self.head().into_bytes();
        bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        for chunk in self.body.chunks(1000) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(end.as_bytes());
        bytes
    }

    /// Another answer with the right one's content type.
    fn with(&self, status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
        let fields = format!("content-type: application/json; charset=utf-8\r\n{fields}");
        with(status, &fields, body)
    }

    fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} Of-The-Sandbox\r\n", self.status);
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}\r\n", value.to_str().unwrap())
        };
        let fields = self
            .fields
            .iter()
            .filter(|(name, _)| *name != "content-length");
        head.extend(fields.map(text));
        head
    }
}

fn with(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Chaos\r\n{fields}content-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// `retry-after` in one of its forms, some of which are none, or nothing.
fn when(dice: &mut Dice) -> String {
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
        0 => return String::new(),
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
    format!("retry-after: {value}\r\n")
}
