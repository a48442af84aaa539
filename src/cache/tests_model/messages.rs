//! The messages of the model: plain values, written as fields in any spelling.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, header};
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_oneof};

use crate::cache::date;

/// A response, as plain values.
#[derive(Clone, Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) private: bool,
    pub(super) public: bool,
    pub(super) must_revalidate: bool,
    pub(super) proxy_revalidate: bool,
    pub(super) must_understand: bool,
    pub(super) max_age: Option<u32>,
    pub(super) s_maxage: Option<u32>,
    pub(super) expires: Option<i32>,
    pub(super) swr: Option<u32>,
    pub(super) sie: Option<u32>,
    pub(super) age: Option<u32>,
    pub(super) modified: Option<u32>,
    pub(super) vary: Vary,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Vary {
    No,
    Foo,
    Everything,
}

/// A request, as plain values.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) only_if_cached: bool,
    pub(super) max_age: Option<u32>,
    pub(super) min_fresh: Option<u32>,
    pub(super) max_stale: Option<Option<u32>>,
    pub(super) sie: Option<u32>,
    pub(super) foo: Option<u8>,
    pub(super) authorized: bool,
}

/// A spelling of fields that the grammar allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spelling {
    pub(super) upper: bool,
    pub(super) quoted: bool,
    pub(super) lines: bool,
    pub(super) noise: bool,
}

const NOON: u64 = 2_000_000_000;

pub(super) fn at(offset: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOON.checked_add_signed(offset).unwrap())
}

fn write(
    headers: &mut HeaderMap,
    name: header::HeaderName,
    mut members: Vec<String>,
    spelling: Spelling,
) {
    if spelling.noise {
        members.insert(members.len() / 2, "x=\"no-store, max-age=9999\"".to_owned());
        members.push("y".to_owned());
    }
    for member in &mut members {
        if spelling.quoted
            && let Some((name, argument)) = member.split_once('=')
            && !argument.starts_with('"')
        {
            *member = format!("{name}=\"{argument}\"");
        }
        if spelling.upper {
            *member = member.to_ascii_uppercase();
        }
    }
    let lines = if spelling.lines {
        members
    } else {
        vec![members.join(" ,\t")]
    };
    for line in lines.iter().filter(|line| !line.is_empty()) {
        headers.append(&name, HeaderValue::from_str(line).unwrap());
    }
}

fn flags(all: &[(bool, &str)]) -> Vec<String> {
    all.iter()
        .filter(|(said, _)| *said)
        .map(|(_, name)| (*name).to_owned())
        .collect()
}

fn deltas(all: &[(Option<u32>, &str)]) -> Vec<String> {
    all.iter()
        .filter_map(|(delta, name)| delta.map(|delta| format!("{name}={delta}")))
        .collect()
}

impl Response {
    pub(super) fn headers(&self, spelling: Spelling) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut members = flags(&[
            (self.no_store, "no-store"),
            (self.no_cache, "no-cache"),
            (self.private, "private"),
            (self.public, "public"),
            (self.must_revalidate, "must-revalidate"),
            (self.proxy_revalidate, "proxy-revalidate"),
            (self.must_understand, "must-understand"),
        ]);
        members.extend(deltas(&[
            (self.max_age, "max-age"),
            (self.s_maxage, "s-maxage"),
            (self.swr, "stale-while-revalidate"),
            (self.sie, "stale-if-error"),
        ]));
        write(&mut headers, header::CACHE_CONTROL, members, spelling);
        headers.insert(header::DATE, date::value(at(0)));
        if let Some(expires) = self.expires {
            headers.insert(header::EXPIRES, date::value(at(i64::from(expires))));
        }
        if let Some(age) = self.age {
            headers.insert(header::AGE, HeaderValue::from(age));
        }
        if let Some(modified) = self.modified {
            headers.insert(header::LAST_MODIFIED, date::value(at(-i64::from(modified))));
        }
        match self.vary {
            Vary::No => None,
            Vary::Foo => headers.insert(header::VARY, HeaderValue::from_static("Foo")),
            Vary::Everything => headers.insert(header::VARY, HeaderValue::from_static("foo, *")),
        };
        headers
    }
}

impl Request {
    pub(super) fn headers(&self, spelling: Spelling) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut members = flags(&[
            (self.no_store, "no-store"),
            (self.no_cache, "no-cache"),
            (self.only_if_cached, "only-if-cached"),
            (self.max_stale == Some(None), "max-stale"),
        ]);
        members.extend(deltas(&[
            (self.max_age, "max-age"),
            (self.min_fresh, "min-fresh"),
            (self.max_stale.flatten(), "max-stale"),
            (self.sie, "stale-if-error"),
        ]));
        write(&mut headers, header::CACHE_CONTROL, members, spelling);
        if let Some(foo) = self.foo {
            headers.insert("foo", HeaderValue::from(u16::from(foo)));
        }
        if self.authorized {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic x"));
        }
        headers
    }
}

fn span() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..40, 0u32..40, Just(u32::from(u16::MAX))]
}

fn rarely() -> impl Strategy<Value = bool> {
    prop_oneof![6 => Just(false), 1 => Just(true)]
}

pub(super) fn responses() -> impl Strategy<Value = Response> {
    let statuses = prop_oneof![4 => Just(200u16), 1 => Just(404), 1 => Just(302), 1 => Just(599), 1 => Just(206)];
    let said = (
        rarely(),
        rarely(),
        rarely(),
        rarely(),
        rarely(),
        rarely(),
        rarely(),
    );
    let times = (
        option::of(span()),
        option::weighted(0.2, span()),
        option::weighted(0.3, -20i32..60),
        option::of(span()),
        option::of(span()),
        option::weighted(0.3, 0u32..30),
        option::weighted(0.3, 0u32..600),
    );
    let vary = prop_oneof![4 => Just(Vary::No), 2 => Just(Vary::Foo), 1 => Just(Vary::Everything)];
    (statuses, said, times, vary).prop_map(|(status, said, times, vary)| Response {
        status,
        no_store: said.0,
        no_cache: said.1,
        private: said.2,
        public: said.3,
        must_revalidate: said.4,
        proxy_revalidate: said.5,
        must_understand: said.6,
        max_age: times.0,
        s_maxage: times.1,
        expires: times.2,
        swr: times.3,
        sie: times.4,
        age: times.5,
        modified: times.6,
        vary,
    })
}

pub(super) fn requests() -> impl Strategy<Value = Request> {
    let said = (rarely(), rarely(), rarely(), rarely());
    let times = (
        option::weighted(0.3, span()),
        option::weighted(0.2, span()),
        option::weighted(0.3, option::of(span())),
        option::weighted(0.2, span()),
    );
    (said, times, option::of(0u8..2)).prop_map(|(said, times, foo)| Request {
        no_store: said.0,
        no_cache: said.1,
        only_if_cached: said.2,
        authorized: said.3,
        max_age: times.0,
        min_fresh: times.1,
        max_stale: times.2,
        sie: times.3,
        foo,
    })
}

pub(super) fn spellings() -> impl Strategy<Value = Spelling> {
    any::<[bool; 4]>().prop_map(|[upper, quoted, lines, noise]| Spelling {
        upper,
        quoted,
        lines,
        noise,
    })
}
