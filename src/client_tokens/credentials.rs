//! The token of a request: where it is in the fields, and its removal from them.
//!
//! What begins with `og_` in `authorization: Bearer` or `x-api-key` is a client token,
//! valid or not. It ends here: it is removed from the request before anything else
//! reads the fields, so it cannot reach an origin, a cache key or a log. The same holds
//! for a value that has a token in another form ([`mod@misplaced`]), which counts as
//! malformed. Other credentials are the origin's and stay as they are.

mod misplaced;

use std::hint::black_box;
use std::sync::Mutex;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use super::token::{LENGTH, PREFIX};
use super::{TokenFault, TokenIndex, TokenTable};
use misplaced::has_token;

/// `x-api-key`, where clients of the API send their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The token that a connection has sent last, so that the next request with the same
/// one needs no digest.
#[derive(Default)]
pub struct TokenMemo(Mutex<Option<Box<KnownToken>>>);

struct KnownToken {
    /// The generation of the table in which it was found.
    generation: u64,
    text: Zeroizing<[u8; LENGTH]>,
    index: TokenIndex,
}

impl TokenMemo {
    /// Finds a token, in the memo or in the table.
    ///
    /// # Errors
    /// Where it is malformed or unknown. Such a token is not remembered.
    #[inline]
    fn find(&self, table: &TokenTable, presented: &[u8]) -> Result<TokenIndex, TokenFault> {
        // The requests of a connection come one after another, so the lock is free.
        // Where it is not, the memo is left as it is.
        let mut memo = self.0.try_lock().ok();
        if let Some(known) = memo.as_deref().and_then(Option::as_deref)
            && known.generation == table.generation()
            && known.is(presented)
        {
            return Ok(known.index);
        }
        let index = table.find(presented)?;
        if let Some(memo) = &mut memo
            && let Ok(text) = presented.try_into()
        {
            **memo = Some(Box::new(KnownToken {
                generation: table.generation(),
                text: Zeroizing::new(text),
                index,
            }));
        }
        Ok(index)
    }
}

impl KnownToken {
    /// Takes the same time wherever the texts differ: behind a proxy, several clients
    /// use one connection.
    #[inline]
    fn is(&self, presented: &[u8]) -> bool {
        let Ok(presented) = <&[u8; LENGTH]>::try_from(presented) else {
            return false;
        };
        // By words of four bytes, of which there is a whole number.
        const { assert!(LENGTH.is_multiple_of(4)) };
        let pairs = self.text.as_chunks().0.iter().zip(presented.as_chunks().0);
        let differ = pairs.fold(0, |differ, (one, other)| {
            differ | (u32::from_ne_bytes(*one) ^ u32::from_ne_bytes(*other))
        });
        black_box(differ) == 0
    }
}

/// Takes the token out of a request's fields, and finds it. `None` where there is none.
///
/// # Errors
/// Where it is malformed or unknown, or where there are several that differ.
pub fn take(
    table: &TokenTable,
    memo: &TokenMemo,
    fields: &mut HeaderMap,
) -> Option<Result<TokenIndex, TokenFault>> {
    let mut presented = Presented::default();
    // One pass over the few fields of a request costs less than two look-ups by name.
    for (name, value) in &*fields {
        if *name == AUTHORIZATION {
            presented.add(bearer(value), value, |presented| {
                &mut presented.authorization
            });
        } else if *name == X_API_KEY {
            presented.add(token(value.as_bytes()), value, |presented| {
                &mut presented.key
            });
        }
    }
    let found = match presented.token {
        _ if presented.is_misplaced => Err(TokenFault::Malformed),
        None => return None,
        Some(_) if presented.is_conflict => Err(TokenFault::Conflicting),
        Some(text) => memo.find(table, text),
    };
    let (authorization, key) = (presented.authorization, presented.key);
    if authorization.tokens > 0 {
        remove(fields, &AUTHORIZATION, authorization, |value| {
            bearer(value).is_some()
        });
    }
    if key.tokens > 0 {
        remove(fields, &X_API_KEY, key, |value| {
            token(value.as_bytes()).is_some()
        });
    }
    Some(found)
}

/// What a request presents.
#[derive(Default)]
struct Presented<'f> {
    token: Option<&'f [u8]>,
    /// Whether there is another one.
    is_conflict: bool,
    /// Whether there is one in a form that is not taken.
    is_misplaced: bool,
    authorization: FieldValues,
    key: FieldValues,
}

/// How many values of a field are tokens or have one, and how many do not.
#[derive(Clone, Copy, Default)]
struct FieldValues {
    tokens: usize,
    others: usize,
}

impl<'f> Presented<'f> {
    /// Adds a value of a field, and the token that it is.
    #[inline]
    fn add(
        &mut self,
        token: Option<&'f [u8]>,
        value: &HeaderValue,
        field: impl FnOnce(&mut Self) -> &mut FieldValues,
    ) {
        match (token, self.token) {
            (Some(token), Some(other)) => self.is_conflict |= token != other,
            (Some(_), None) => self.token = token,
            (None, _) if has_token(value) => self.is_misplaced = true,
            (None, _) => return field(self).others += 1,
        }
        field(self).tokens += 1;
    }
}

/// The client token of an `authorization` field (RFC 6750 §2.1). The scheme's case
/// does not matter (RFC 9110 §11.1).
#[inline]
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = value.as_bytes().split_at_checked("Bearer ".len())?;
    match scheme.eq_ignore_ascii_case(b"Bearer ") {
        true => token(rest),
        false => None,
    }
}

/// The client token of a text.
#[inline]
fn token(text: &[u8]) -> Option<&[u8]> {
    let text = text.trim_ascii();
    text.starts_with(PREFIX).then_some(text)
}

/// Removes the values of a field that are tokens or have one.
#[inline]
fn remove(
    fields: &mut HeaderMap,
    name: &HeaderName,
    values: FieldValues,
    is_token: impl Fn(&HeaderValue) -> bool,
) {
    match values.others {
        0 => drop(fields.remove(name)),
        _ => keep_others(fields, name, is_token),
    }
}

#[cold]
fn keep_others(fields: &mut HeaderMap, name: &HeaderName, is_token: impl Fn(&HeaderValue) -> bool) {
    let mut others: Vec<_> = fields.get_all(name).iter().cloned().collect();
    others.retain(|value| !is_token(value) && !has_token(value));
    fields.remove(name);
    for other in others {
        fields.append(name, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_tokens::{Settings, TokenFile, token};

    fn table(tokens: &[&str]) -> TokenTable {
        let hex = |token: &&str| -> String {
            let digest = token::digest(token.as_bytes());
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let lines: String = (0..)
            .zip(tokens)
            .map(|(n, t)| format!("n{n} {}\n", hex(t)))
            .collect();
        TokenTable::new(&Settings {
            file: Some("t".into()),
            required: false,
            tokens: TokenFile::parse(&lines).unwrap().into(),
        })
    }

    fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn tokens_are_taken_and_other_credentials_stay() {
        let (one, other) = (
            token::generate().unwrap().text,
            token::generate().unwrap().text,
        );
        let (one, other) = (&**one, &**other);
        let unknown = &**token::generate().unwrap().text;
        let table = table(&[one, other]);
        let bearer = |token: &str| format!("Bearer {token}");
        let (ok, fault) = (|n| Some(Ok(TokenIndex(n))), |fault| Some(Err(fault)));
        let rows = [
            (vec![], None, vec![]),
            (vec![("authorization", bearer(one))], ok(0), vec![]),
            (
                vec![("authorization", format!("bEARER   {other} "))],
                ok(1),
                vec![],
            ),
            (vec![("x-api-key", other.to_owned())], ok(1), vec![]),
            (
                vec![
                    ("x-api-key", one.to_owned()),
                    ("authorization", bearer(one)),
                ],
                ok(0),
                vec![],
            ),
            (
                vec![
                    ("x-api-key", one.to_owned()),
                    ("authorization", bearer(other)),
                ],
                fault(TokenFault::Conflicting),
                vec![],
            ),
            (
                vec![
                    ("authorization", bearer(one)),
                    ("authorization", bearer(other)),
                ],
                fault(TokenFault::Conflicting),
                vec![],
            ),
            (
                vec![("authorization", bearer(unknown))],
                fault(TokenFault::Unknown),
                vec![],
            ),
            (
                vec![("x-api-key", format!("{one}x"))],
                fault(TokenFault::Malformed),
                vec![],
            ),
            (
                vec![("x-api-key", format!("{one}, {one}"))],
                fault(TokenFault::Malformed),
                vec![],
            ),
            (
                vec![("authorization", bearer("og_"))],
                fault(TokenFault::Malformed),
                vec![],
            ),
            // Credentials of the origin.
            (
                vec![("authorization", bearer("abc"))],
                None,
                vec!["authorization: Bearer abc"],
            ),
            (
                vec![("authorization", "og_".to_owned())],
                None,
                vec!["authorization: og_"],
            ),
            (
                vec![("authorization", "Bearer".to_owned())],
                None,
                vec!["authorization: Bearer"],
            ),
            (
                vec![("x-api-key", "abc".to_owned())],
                None,
                vec!["x-api-key: abc"],
            ),
            (
                vec![
                    ("authorization", "Basic YTpi".to_owned()),
                    ("x-api-key", one.to_owned()),
                ],
                ok(0),
                vec!["authorization: Basic YTpi"],
            ),
            (
                vec![
                    ("x-api-key", "abc".to_owned()),
                    ("authorization", bearer(unknown)),
                ],
                fault(TokenFault::Unknown),
                vec!["x-api-key: abc"],
            ),
            (
                vec![
                    ("authorization", "Basic YTpi".to_owned()),
                    ("authorization", bearer(one)),
                ],
                ok(0),
                vec!["authorization: Basic YTpi"],
            ),
            // A token in another form.
            (
                vec![("authorization", format!("Basic {one}"))],
                fault(TokenFault::Malformed),
                vec![],
            ),
            (
                vec![
                    ("x-api-key", bearer(one)),
                    ("x-api-key", "abc".to_owned()),
                    ("authorization", bearer(one)),
                ],
                fault(TokenFault::Malformed),
                vec!["x-api-key: abc"],
            ),
        ];
        let rows = rows.map(|(sent, found, left)| {
            (
                sent,
                found,
                left.iter().map(ToString::to_string).collect::<Vec<_>>(),
            )
        });
        let memo = TokenMemo::default();
        // The second time around, the memo has another token than most rows.
        for (sent, expected, left) in rows.iter().chain(&rows) {
            let pairs: Vec<_> = sent.iter().map(|(name, value)| (*name, &**value)).collect();
            let mut fields = fields(&pairs);
            assert_eq!(take(&table, &memo, &mut fields), *expected, "{sent:?}");
            let text = |(name, value): (&HeaderName, &HeaderValue)| {
                format!("{name}: {}", value.to_str().unwrap())
            };
            assert_eq!(
                fields.iter().map(text).collect::<Vec<_>>(),
                *left,
                "{sent:?}"
            );
        }
    }

    #[test]
    fn a_memo_is_valid_for_one_generation() {
        let new = token::generate().unwrap();
        let text = &**new.text;
        let first = table(&[text]);
        let memo = TokenMemo::default();
        let found = |table: &TokenTable| {
            let mut fields = fields(&[("x-api-key", text)]);
            take(table, &memo, &mut fields)
        };
        for _ in 0..2 {
            assert_eq!(found(&first), Some(Ok(TokenIndex(0))));
        }
        // The file has the token at another place, then not at all.
        let other = &**token::generate().unwrap().text;
        let line = |token: &str| {
            let hex: String = token::digest(token.as_bytes())
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            format!("{} {hex}\n", &token[3..13])
        };
        let next = |table: &TokenTable, text: &str| {
            table.next(&Settings {
                file: Some("t".into()),
                required: false,
                tokens: TokenFile::parse(text).unwrap().into(),
            })
        };
        let second = next(&first, &format!("{}{}", line(other), line(text)));
        for _ in 0..2 {
            assert_eq!(found(&second), Some(Ok(TokenIndex(1))));
        }
        let third = next(&second, "");
        for _ in 0..2 {
            assert_eq!(found(&third), Some(Err(TokenFault::Unknown)));
        }
        assert_eq!(
            found(&second),
            Some(Ok(TokenIndex(1))),
            "an earlier one still has it"
        );
    }

    #[test]
    fn a_memo_finds_only_the_same_token() {
        let new = token::generate().unwrap();
        let text = new.text.as_bytes();
        let known = KnownToken {
            generation: 1,
            text: Zeroizing::new(text.try_into().unwrap()),
            index: TokenIndex(0),
        };
        assert!(known.is(text));
        for at in 0..LENGTH {
            let mut other = text.to_vec();
            other[at] ^= 1;
            assert!(!known.is(&other), "byte {at}");
        }
        assert!(!known.is(&text[1..]) && !known.is(b""));
    }
}
