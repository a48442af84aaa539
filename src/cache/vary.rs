//! Selection among variants by `Vary` (RFC 9111 §4.1).
//!
//! When a response is stored, its secondary key records the values of the
//! request fields that `Vary` nominates. A later request matches if it has the
//! same key: if its nominated fields have the same values, letter by letter. Of codings and
//! languages neither case nor whitespace counts, nor, for codings, the order.
//!
//! Selection by preference (`q` of `Accept-Language` against
//! `Content-Language`) is left to the origin.

use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, ACCEPT_LANGUAGE, HeaderName, VARY};

use super::list::plain;

/// The request fields that `Vary` nominates, sorted and without repetition; `None` if no
/// request matches, because it has `*` or a member that is no field name.
#[must_use]
pub fn nominated(response: &HeaderMap) -> Option<Box<[HeaderName]>> {
    let lines = response.get_all(VARY).iter();
    let members = lines.flat_map(|line| plain(line.as_bytes()));
    let names = members.map(|member| {
        let name = HeaderName::from_bytes(member).ok();
        name.filter(|_| member != b"*")
    });
    let mut names: Vec<_> = names.collect::<Option<_>>()?;
    names.sort_unstable_by(|one, two| one.as_str().cmp(two.as_str()));
    names.dedup();
    Some(names.into())
}

/// The longest list of codings or languages that is normalised, in bytes: this is done for each
/// stored variant, while a client waits.
const LONGEST_LIST: usize = 256;

/// The values of a request in the nominated fields, as one byte string. `received` gives the
/// fields that the origin receives. Allocates nothing if no field is nominated.
#[must_use]
pub fn secondary_key<'r>(
    nominated: &[HeaderName],
    received: impl Fn() -> &'r HeaderMap,
) -> Vec<u8> {
    let mut key = Vec::new();
    for name in nominated {
        let fields = received();
        // §4.1: an absent field matches only an absent field. No value holds these bytes.
        let is_present = fields.contains_key(name);
        key.push(if is_present { b'\n' } else { 0 });
        let lines = fields.get_all(name).iter();
        let lines: Vec<_> = lines.map(|line| line.as_bytes().trim_ascii()).collect();
        let mut text = lines.join(&b", "[..]);
        // RFC 9110 §8.4.1 and §12.5.4: names of codings and languages have no case.
        if [ACCEPT_ENCODING, ACCEPT_LANGUAGE].contains(name) && text.len() <= LONGEST_LIST {
            text.make_ascii_lowercase();
            let mut members: Vec<_> = text
                .split(|&byte| byte == b',')
                .map(<[u8]>::trim_ascii)
                .collect();
            // RFC 9110 §12.5.3 gives no meaning to the order of codings.
            if *name == ACCEPT_ENCODING {
                members.sort_unstable();
            }
            text = members.join(&b',');
        }
        key.extend(text);
    }
    key
}

#[cfg(test)]
mod tests;
