//! Content codings (RFC 9110 §8.4.1), and which of them a request accepts
//! (§12.5.3).
//!
//! A response without a coding is always acceptable here, also to a request with
//! `identity;q=0`: a response is compressed after it was first sent, so until then
//! there is no other, and §12.5.3 lets a server send it. 406 would help nobody.

use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list::plain;

/// A content coding that ordgate can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Coding {
    /// Zstandard (RFC 8878).
    Zstd,
    /// Brotli (RFC 7932).
    #[serde(rename = "br")]
    Brotli,
    /// gzip (RFC 1952).
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

    /// Whether this is what the tag of an encoded body has beyond that of the body
    /// ([`encoded_etag`](super::validator::encoded_etag)).
    pub(super) fn is_tag_suffix(text: &[u8]) -> bool {
        let mut names = Self::ALL.iter().map(|coding| coding.name().as_bytes());
        names.any(|name| text.strip_prefix(b"-") == Some(name))
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

/// The coding that a request prefers, by weight, then in the given order; `None` where it
/// accepts none, prefers that there be none, or does not say: then its client may know none.
/// A malformed member accepts nothing.
pub(crate) fn preferred(fields: &HeaderMap, order: &[Coding]) -> Option<Coding> {
    if !fields.contains_key(ACCEPT_ENCODING) {
        return None;
    }
    let mut named = [None; CODINGS];
    let (mut identity, mut others) = (None, None);
    let lines = fields.get_all(ACCEPT_ENCODING).iter();
    let members = lines.flat_map(|line| plain(line.as_bytes()));
    for (word, weight) in members.filter_map(weighted) {
        match Coding::named(word) {
            Some(coding) => named[coding.index()] = Some(weight),
            None if word == b"*" => others = Some(weight),
            None if word.eq_ignore_ascii_case(b"identity") => identity = Some(weight),
            None => {}
        }
    }
    let weight = |coding: &Coding| named[coding.index()].or(others).unwrap_or(0.0);
    // Of several with the same weight, it is the last that is found.
    let best = order.iter().rev();
    let best = best.max_by(|one, other| weight(one).total_cmp(&weight(other)))?;
    let is_accepted = weight(best) > 0.0 && weight(best) >= identity.unwrap_or(0.0);
    is_accepted.then_some(*best)
}

/// A word and its weight (§12.4.2).
fn weighted(member: &[u8]) -> Option<(&[u8], f32)> {
    let mut parts = member
        .splitn(2, |&byte| byte == b';')
        .map(<[u8]>::trim_ascii);
    let (word, parameter) = (parts.next()?, parts.next());
    let Some(parameter) = parameter else {
        return Some((word, 1.0));
    };
    let weight = std::str::from_utf8(parameter).ok()?;
    let weight = weight.strip_prefix(['q', 'Q'])?.strip_prefix('=')?;
    let weight = weight.parse().ok()?;
    (0.0..=1.0).contains(&weight).then_some((word, weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferred_of(lines: &[&'static str], order: &[Coding]) -> Option<Coding> {
        let mut fields = HeaderMap::new();
        for line in lines {
            fields.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
        }
        preferred(&fields, order)
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
            (&["gzip;q=0.5, br;q=0.501"], Some(Brotli), "by thousandths"),
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
            (&["gzip;level=1"], None, "malformed: another parameter"),
            (&[",, ,gzip,"], Some(Gzip), "§5.6.1: empty members"),
        ];
        for (lines, expected, why) in rows {
            assert_eq!(
                preferred_of(lines, &Coding::ALL),
                *expected,
                "{lines:?} {why}"
            );
        }
    }

    #[test]
    fn only_configured_codings_are_chosen_and_in_their_order() {
        let all = &["gzip, br, zstd"];
        let order = [Coding::Gzip, Coding::Brotli];
        assert_eq!(preferred_of(all, &order), Some(Coding::Gzip));
        assert_eq!(preferred_of(all, &[]), None);
    }
}
