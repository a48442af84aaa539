//! The provider's API keys, as texts that nothing may have that is shown: some client may
//! send a key in a URL.
//!
//! What is shown (lines of logs, spans, the last errors, what the budget was used for) is
//! made in many places, of which few know an upstream and its keys. So the process has one
//! set of hidden texts. Whoever uses keys adds them, and they are hidden for as long as it
//! has the [`HiddenKeys`] that it got.

use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwapOption, Guard};
use http::HeaderValue;

use crate::sync::lock;

static HIDDEN: ArcSwapOption<HiddenTexts> = ArcSwapOption::const_empty();
/// The number of the next [`HiddenKeys`]; it is held while the set changes.
static NEXT: Mutex<u64> = Mutex::new(0);

/// All texts that are hidden.
pub(crate) struct HiddenTexts {
    /// With the numbers of those that have added them.
    all: Vec<(u64, HeaderValue)>,
    /// Each of them once: upstreams may share keys, and a reload holds them twice for a moment.
    distinct: Vec<HeaderValue>,
    /// The bytes that one of them begins with, in both cases.
    begins: [bool; 256],
}

/// Texts are hidden until this is dropped.
#[derive(Debug)]
pub(crate) struct HiddenKeys(u64);

impl HiddenKeys {
    /// Hides texts of ASCII that reveal a key, in either case of letters. They share their
    /// bytes with the key, so these are zeroed when all of its users have dropped it.
    pub(crate) fn hide(texts: impl IntoIterator<Item = HeaderValue>) -> Self {
        let mut next = lock(&NEXT);
        let number = *next;
        *next += 1;
        let new = texts.into_iter().filter(|text| !text.is_empty());
        change(|all| all.extend(new.map(|text| (number, text))));
        Self(number)
    }
}

impl Drop for HiddenKeys {
    fn drop(&mut self) {
        let _changes = lock(&NEXT);
        change(|all| all.retain(|(number, _)| *number != self.0));
    }
}

fn change(make: impl FnOnce(&mut Vec<(u64, HeaderValue)>)) {
    let before = HIDDEN.load_full();
    let mut all = before.map_or_else(Vec::new, |before| before.all.clone());
    make(&mut all);
    let mut begins = [false; 256];
    for byte in all.iter().filter_map(|(_, text)| text.as_bytes().first()) {
        begins[usize::from(byte.to_ascii_lowercase())] = true;
        begins[usize::from(byte.to_ascii_uppercase())] = true;
    }
    let mut distinct: Vec<_> = all.iter().map(|(_, text)| text.clone()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let changed = HiddenTexts {
        all,
        distinct,
        begins,
    };
    let changed = (!changed.all.is_empty()).then(|| Arc::new(changed));
    HIDDEN.store(changed);
}

/// All texts that are hidden now, if there are any.
pub(crate) fn hidden() -> Guard<Option<Arc<HiddenTexts>>> {
    HIDDEN.load()
}

impl HiddenTexts {
    /// Whether one of them may begin with this byte.
    pub(crate) fn begins_with(&self, byte: u8) -> bool {
        self.begins[usize::from(byte)]
    }

    /// Where the longest one ends that begins at a place of a text, as it is or
    /// percent-encoded.
    pub(crate) fn end(&self, text: &[u8], at: usize) -> Option<usize> {
        let (first, _) = decoded(text, at)?;
        if !self.begins_with(first) && !self.begins_with(text[at]) {
            return None;
        }
        let ends = self.distinct.iter().filter_map(|hidden| {
            let hidden = hidden.as_bytes();
            let plain = text[at..].get(..hidden.len());
            let plain = plain.filter(|part| part.eq_ignore_ascii_case(hidden));
            match plain {
                Some(plain) => Some(at + plain.len()),
                None => encoded_end(hidden, text, at),
            }
        });
        ends.max()
    }
}

/// Where a hidden text ends whose bytes may be percent-encoded.
fn encoded_end(hidden: &[u8], text: &[u8], at: usize) -> Option<usize> {
    hidden.iter().try_fold(at, |at, expected| {
        let (byte, next) = decoded(text, at)?;
        byte.eq_ignore_ascii_case(expected).then_some(next)
    })
}

/// The byte at a place of a text, percent-decoded, and the place after it.
pub(crate) fn decoded(text: &[u8], at: usize) -> Option<(u8, usize)> {
    let digit = |at: usize| {
        let digit = char::from(*text.get(at)?).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    let byte = *text.get(at)?;
    match (byte, digit(at + 1), digit(at + 2)) {
        (b'%', Some(high), Some(low)) => Some((high << 4 | low, at + 3)),
        _ => Some((byte, at + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_hidden_until_the_last_of_its_users_is_dropped() {
        // Other tests hide other texts meanwhile.
        let text = "q7-Hidden%41/Te+xt";
        let hide = || HiddenKeys::hide([HeaderValue::from_static(text)]);
        let end = |text: &str, at| hidden().as_ref()?.end(text.as_bytes(), at);
        assert_eq!(end(text, 0), None);
        let (one, other) = (hide(), hide());
        drop(one);
        for (text, at, expected) in [
            (text, 0, Some(18)),
            ("/a?b=q7-Hidden%41/Te+xt&c", 5, Some(23)),
            ("Q7-HIDDEN%41/tE+XT", 0, Some(18)),
            ("%717-Hidden%2541%2fTe%2Bxt!", 0, Some(26)),
            (text, 1, None),
            ("q7-Hidden%41/Te+x", 0, None),
            ("q7-HiddenA/Te+xt", 0, None),
            ("", 0, None),
            ("%", 0, None),
        ] {
            assert_eq!(end(text, at), expected, "{text} at {at}");
        }
        drop(other);
        assert_eq!(end(text, 0), None);
    }
}
