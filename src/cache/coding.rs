//! Content codings (RFC 9110 §8.4.1), and which of them a request accepts
//! (§12.5.3).
//!
//! A response without a coding is always acceptable here, also to a request with
//! `identity;q=0`: a response is compressed after it was first sent, so until then
//! there is no other, and §12.5.3 lets a server send it. 406 would help nobody.

use std::cell::Cell;

use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list::{plain, weighted};

/// A content coding that ordgate can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Coding {
    /// Zstandard (RFC 8878).
    #[serde(rename = "zstd")]
    Zstd,
    /// Brotli (RFC 7932).
    #[serde(rename = "br")]
    Brotli,
    /// gzip (RFC 1952).
    #[serde(rename = "gzip")]
    Gzip,
}

/// How many codings there are.
pub(crate) const CODINGS: usize = 3;

impl Coding {
    /// All codings.
    pub(crate) const ALL: [Self; CODINGS] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Its name in `content-encoding`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// What the entity tag of a body in this coding ends in.
    pub(crate) const fn tag_suffix(self) -> &'static [u8] {
        match self {
            Self::Zstd => b"-zstd",
            Self::Brotli => b"-br",
            Self::Gzip => b"-gzip",
        }
    }

    /// Whether this is what the tag of an encoded body has beyond that of the body.
    pub(super) fn is_tag_suffix(text: &[u8]) -> bool {
        let mut all = Self::ALL.into_iter();
        all.any(|coding| coding.tag_suffix() == text)
    }

    /// The value of `content-encoding`.
    pub(crate) const fn field(self) -> HeaderValue {
        HeaderValue::from_static(self.name())
    }

    /// Its position in tables by coding.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    fn named(word: &[u8]) -> Option<Self> {
        // §8.4.1.3: the two names of gzip are equivalent.
        if word.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Self::Gzip);
        }
        let mut all = Self::ALL.into_iter();
        all.find(|coding| word.eq_ignore_ascii_case(coding.name().as_bytes()))
    }
}

/// The codings that a request accepts, by their weights in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedCodings {
    /// The weight of each coding; 0 where it is not accepted.
    weights: [u16; CODINGS],
    /// The weight of no coding; `None` where the request does not name it.
    identity: Option<u16>,
}

impl AcceptedCodings {
    const NONE: Self = Self {
        weights: [0; CODINGS],
        identity: None,
    };

    /// What a request accepts; `None` if it does not say so. Such a request gets no
    /// coding: its client may know none.
    #[inline]
    pub(crate) fn of(fields: &HeaderMap) -> Option<Self> {
        let first = fields.get(ACCEPT_ENCODING)?;
        Some(Self::of_present(first, fields))
    }

    fn of_present(first: &HeaderValue, fields: &HeaderMap) -> Self {
        let mut lines = fields.get_all(ACCEPT_ENCODING).iter();
        match lines.nth(1) {
            None => Self::of_line(first.as_bytes()),
            Some(_) => {
                let lines = fields.get_all(ACCEPT_ENCODING).iter();
                Self::read(lines.map(HeaderValue::as_bytes))
            }
        }
    }

    /// What one line means. Most requests of a connection, and of all, have one of a
    /// few values: each thread remembers the last.
    fn of_line(line: &[u8]) -> Self {
        let last = LAST.get();
        if last.text.get(..usize::from(last.length)) == Some(line) && last.is_set {
            return last.accepted;
        }
        let accepted = Self::read([line].into_iter());
        let mut text = [0; REMEMBERED];
        if let Some(room) = text.get_mut(..line.len()) {
            room.copy_from_slice(line);
            LAST.set(LastLine {
                text,
                length: u8::try_from(line.len()).unwrap_or(0),
                is_set: true,
                accepted,
            });
        }
        accepted
    }

    /// Reads the lines of the field. A malformed member accepts nothing.
    fn read<'l>(lines: impl Iterator<Item = &'l [u8]>) -> Self {
        let mut named: [Option<u16>; CODINGS] = [None; CODINGS];
        let (mut identity, mut others) = (None, None);
        for (word, weight) in lines.flat_map(plain).filter_map(weighted) {
            match Coding::named(word) {
                Some(coding) => named[coding.index()] = Some(weight),
                None if word == b"*" => others = Some(weight),
                None if word.eq_ignore_ascii_case(b"identity") => identity = Some(weight),
                None => {}
            }
        }
        Self {
            weights: named.map(|weight| weight.or(others).unwrap_or(0)),
            identity,
        }
    }

    /// The coding that the request prefers, by weight, then in the given order;
    /// `None` where it accepts none, or prefers that there be none.
    #[inline]
    pub(crate) fn preferred(self, order: &[Coding]) -> Option<Coding> {
        let mut best = (None, 0);
        for coding in order {
            let weight = self.weights[coding.index()];
            if weight > best.1 {
                best = (Some(*coding), weight);
            }
        }
        best.0.filter(|_| best.1 >= self.identity.unwrap_or(0))
    }
}

/// The longest line that is remembered.
const REMEMBERED: usize = 48;

/// The line that a thread has read last.
#[derive(Clone, Copy)]
struct LastLine {
    text: [u8; REMEMBERED],
    length: u8,
    is_set: bool,
    accepted: AcceptedCodings,
}

thread_local! {
    static LAST: Cell<LastLine> = const {
        Cell::new(LastLine {
            text: [0; REMEMBERED],
            length: 0,
            is_set: false,
            accepted: AcceptedCodings::NONE,
        })
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(lines: &[&'static str]) -> Option<AcceptedCodings> {
        let mut fields = HeaderMap::new();
        for line in lines {
            fields.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
        }
        AcceptedCodings::of(&fields)
    }

    #[test]
    fn the_preferred_coding_follows_weights_then_the_servers_order() {
        use Coding::{Brotli, Gzip, Zstd};
        let rows: &[(&[&str], Option<Coding>, &str)] = &[
            (&[], None, "a request that does not say gets none"),
            (&[""], None, "§12.5.3: only identity"),
            (&["gzip"], Some(Gzip), ""),
            (&["GZIP"], Some(Gzip), "§8.4.1: names have no case"),
            (&["x-gzip"], Some(Gzip), "§8.4.1.3"),
            (&["deflate"], None, "not one of ordgate's"),
            (&["gzip, deflate, br, zstd"], Some(Zstd), "browsers"),
            (&["deflate, gzip, br, zstd"], Some(Zstd), "curl"),
            (&["gzip, deflate, br"], Some(Brotli), "older browsers"),
            (&["gzip;q=1.0, br;q=0.9"], Some(Gzip), "by weight"),
            (&["gzip;q=0.5, br;q=0.501"], Some(Brotli), "in thousandths"),
            (&["gzip ; q=0.5 ,br;Q=0.4"], Some(Gzip), "whitespace"),
            (&["gzip;q=0"], None, "§12.4.2: not acceptable"),
            (&["gzip;q=0.000, br"], Some(Brotli), ""),
            (&["*"], Some(Zstd), "any"),
            (&["*;q=0"], None, ""),
            (&["zstd;q=0, *"], Some(Brotli), "any that is not named"),
            (&["gzip, *;q=0"], Some(Gzip), ""),
            (&["*;q=0.5, gzip;q=0.6"], Some(Gzip), ""),
            (&["identity"], None, ""),
            (&["identity;q=0"], None, "identity is sent all the same"),
            (&["identity;q=0, gzip"], Some(Gzip), ""),
            (&["identity;q=0, *"], Some(Zstd), ""),
            (&["identity, gzip"], Some(Gzip), "equal weights"),
            (&["identity, gzip;q=0.5"], None, "identity is preferred"),
            (&["identity;q=0.5, gzip;q=0.5"], Some(Gzip), ""),
            (&["gzip", "br"], Some(Brotli), "two lines are one list"),
            (&["br;q=0.1", "gzip"], Some(Gzip), ""),
            (&["gzip;q=2, br"], Some(Brotli), "malformed: no weight"),
            (&["gzip;q=0.1234"], None, "malformed: too many digits"),
            (&["gzip;level=1"], None, "malformed: another parameter"),
            (&[",, ,gzip,"], Some(Gzip), "§5.6.1: empty members"),
        ];
        // Twice, since a line may be remembered.
        for (lines, expected, why) in rows.iter().chain(rows) {
            let found = accepted(lines).and_then(|accepted| accepted.preferred(&Coding::ALL));
            assert_eq!(found, *expected, "{lines:?} {why}");
        }
    }

    #[test]
    fn only_configured_codings_are_chosen_and_in_their_order() {
        let all = accepted(&["gzip, br, zstd"]).unwrap();
        let order = [Coding::Gzip, Coding::Brotli];
        assert_eq!(all.preferred(&order), Some(Coding::Gzip));
        assert_eq!(all.preferred(&[]), None);
    }

    #[test]
    fn long_lines_are_read_too() {
        let long = "gzip;q=0.001, deflate;q=0.002, br;q=0.003, zstd;q=0.002, identity;q=0";
        assert!(long.len() > REMEMBERED);
        for _again in 0..2 {
            let found = accepted(&[long]).unwrap();
            assert_eq!(found.preferred(&Coding::ALL), Some(Coding::Brotli));
        }
        // A line that begins as the remembered one.
        assert_eq!(
            accepted(&["gzip"]).unwrap().preferred(&Coding::ALL),
            Some(Coding::Gzip)
        );
        assert_eq!(accepted(&["gzi"]).unwrap().preferred(&Coding::ALL), None);
        assert_eq!(
            accepted(&["gzip "]).unwrap().preferred(&Coding::ALL),
            Some(Coding::Gzip)
        );
    }
}
