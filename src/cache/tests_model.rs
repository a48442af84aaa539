//! A small executable model of RFC 9111 beside the rules.
//!
//! The model knows no fields and no text: it holds what a request and a response say as plain values,
//! in whole seconds, and one list of prohibitions, each a sentence of the RFC. The properties write
//! those values as fields, in any of the ways that the grammar allows, walk them through the real rules
//! (store, choose, reuse), and hold that nothing is reused that the model prohibits, nothing fetched
//! that it would have reused for certain.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use proptest::{
    option,
    prelude::{Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest},
};

use super::{
    date,
    directives::RequestDirectives,
    freshness::Heuristic,
    reuse::{Origin, Reuse, StaleBounds, StoredFacts, may_reuse},
    status::Forward,
    storable::{Exchange, SetCookie, storable},
    targeted::TargetList,
    vary::Nominated,
};

/// What a response says.
#[derive(Clone, Debug)]
struct Response {
    status: u16,
    no_store: bool,
    no_cache: bool,
    private: bool,
    public: bool,
    must_revalidate: bool,
    proxy_revalidate: bool,
    must_understand: bool,
    max_age: Option<u32>,
    s_maxage: Option<u32>,
    expires: Option<i32>,
    swr: Option<u32>,
    sie: Option<u32>,
    age: Option<u32>,
    modified: Option<u32>,
    vary: Vary,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Vary {
    No,
    Foo,
    Everything,
}

/// What a request says.
#[derive(Clone, Debug)]
struct Request {
    no_store: bool,
    no_cache: bool,
    only_if_cached: bool,
    max_age: Option<u32>,
    min_fresh: Option<u32>,
    max_stale: Option<Option<u32>>,
    sie: Option<u32>,
    foo: Option<u8>,
    authorized: bool,
}

/// How fields are written.
#[derive(Clone, Copy, Debug)]
struct Hand {
    upper: bool,
    quoted: bool,
    lines: bool,
    noise: bool,
}

const NOON: u64 = 2_000_000_000;

fn at(offset: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOON.checked_add_signed(offset).unwrap())
}

fn write(headers: &mut HeaderMap, name: header::HeaderName, mut members: Vec<String>, hand: Hand) {
    if hand.noise {
        members.insert(members.len() / 2, "x=\"no-store, max-age=9999\"".to_owned());
        members.push("y".to_owned());
    }
    for member in &mut members {
        if hand.quoted
            && let Some((name, argument)) = member.split_once('=')
            && !argument.starts_with('"')
        {
            *member = format!("{name}=\"{argument}\"");
        }
        if hand.upper {
            *member = member.to_ascii_uppercase();
        }
    }
    let lines = if hand.lines {
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
    fn headers(&self, hand: Hand) -> HeaderMap {
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
        write(&mut headers, header::CACHE_CONTROL, members, hand);
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

    /// §4.2.1 and §4.2.2.
    fn lifetime(&self) -> u64 {
        let guessed = self.public || HEURISTIC.contains(&self.status);
        match (self.s_maxage, self.max_age, self.expires, self.modified) {
            (Some(delta), ..) | (None, Some(delta), ..) => u64::from(delta),
            (None, None, Some(expires), _) => u64::try_from(expires).unwrap_or(0),
            (None, None, None, Some(modified)) if guessed => u64::from(modified) / 10,
            (None, None, None, _) => 0,
        }
    }

    /// §3: may a shared cache keep it?
    fn may_be_kept(&self, request: &Request) -> bool {
        let understood = self.status < 512;
        let explicit = self.public
            || self.s_maxage.is_some()
            || self.max_age.is_some()
            || self.expires.is_some();
        let shared = self.public || self.s_maxage.is_some() || self.must_revalidate;
        let silenced = if self.must_understand {
            !understood
        } else {
            self.no_store
        };
        !(request.no_store || silenced || self.private)
            && (!request.authorized || shared)
            && (explicit || HEURISTIC.contains(&self.status))
            && self.vary != Vary::Everything
            && self.status != 206
    }
}

const HEURISTIC: [u16; 4] = [200, 203, 404, 410];

impl Request {
    fn headers(&self, hand: Hand) -> HeaderMap {
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
        write(&mut headers, header::CACHE_CONTROL, members, hand);
        if let Some(foo) = self.foo {
            headers.insert("foo", HeaderValue::from(u16::from(foo)));
        }
        if self.authorized {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic x"));
        }
        headers
    }
}

/// A moment at which a stored response could answer a request.
struct Moment<'a> {
    stored_for: &'a Request,
    response: &'a Response,
    request: &'a Request,
    age: u64,
    origin: Origin,
    bounds: StaleBounds,
}

impl Moment<'_> {
    fn staleness(&self) -> Option<u64> {
        let lifetime = self.response.lifetime();
        (self.age >= lifetime).then(|| self.age - lifetime)
    }

    /// The first sentence that prohibits this way of reuse.
    fn prohibited(&self, way: Reuse) -> Option<&'static str> {
        let Self {
            response, request, ..
        } = self;
        let stale = self.staleness();
        let left = response.lifetime().saturating_sub(self.age);
        let too_old = request
            .max_age
            .is_some_and(|limit| self.age > u64::from(limit));
        let too_stale = request
            .min_fresh
            .is_some_and(|least| left < u64::from(least));
        let nothing_stale = request.max_age.is_some() && request.max_stale.is_none();
        let error = way == Reuse::IfError;
        let consents_to_error = error && request.sie.is_some();
        let forced =
            response.must_revalidate || response.proxy_revalidate || response.s_maxage.is_some();
        let within =
            |limit: Option<u32>| limit.is_some_and(|limit| stale.unwrap_or(0) <= u64::from(limit));
        let trouble = match self.origin {
            Origin::Reachable => None,
            Origin::Failed => Some(self.bounds.failed.as_secs()),
            Origin::Disconnected => Some(self.bounds.disconnected.as_secs()),
        };
        let sentences = [
            (
                !response.may_be_kept(self.stored_for),
                "§3: it must not have been stored",
            ),
            (
                response.vary == Vary::Foo && self.stored_for.foo != request.foo,
                "§4.1: nominated fields differ",
            ),
            (
                response.no_cache,
                "§5.2.2.4: not without successful validation",
            ),
            (
                request.no_cache && !consents_to_error,
                "§5.2.1.4: not without successful validation",
            ),
            (
                too_old && !consents_to_error,
                "§5.2.1.1: older than the client accepts",
            ),
            (
                too_stale && !consents_to_error,
                "§5.2.1.3: less fresh than the client wants",
            ),
            (
                stale.is_some() && forced,
                "§4.2.4: stale, and a directive prohibits that",
            ),
            (
                stale.is_some() && nothing_stale && !consents_to_error,
                "§5.2.1.1: the client wants nothing stale",
            ),
            (stale.is_some() && way == Reuse::Fresh, "§4: stale"),
            (
                way == Reuse::MaxStale
                    && !request
                        .max_stale
                        .is_some_and(|limit| limit.is_none() || within(limit)),
                "§5.2.1.2: staler than the client accepts",
            ),
            (
                way == Reuse::WhileRevalidate && !within(response.swr),
                "RFC 5861 §3: out of the window",
            ),
            (error && trouble.is_none(), "RFC 5861 §4: there is no error"),
            (
                error
                    && match (request.sie, response.sie) {
                        (Some(limit), _) | (None, Some(limit)) => !within(Some(limit)),
                        (None, None) => {
                            trouble.is_none_or(|limit| limit == 0 || stale.unwrap_or(0) > limit)
                        }
                    },
                "§4.2.4: nothing permits so stale a response",
            ),
        ];
        sentences
            .iter()
            .find(|(prohibits, _)| *prohibits)
            .map(|(_, sentence)| *sentence)
    }
}

/// The real rules, one after the other: store, choose, reuse.
fn walk(moment: &Moment<'_>, hand: Hand) -> Option<Result<Reuse, Forward>> {
    let kept_for = moment.stored_for.headers(hand);
    let headers = moment.response.headers(hand);
    let status = StatusCode::from_u16(moment.response.status).unwrap();
    let targets = TargetList::default();
    storable(&Exchange {
        method: &Method::GET,
        target: &Uri::from_static("http://example.org/"),
        request: &kept_for,
        directives: &RequestDirectives::of(&kept_for),
        status,
        response: &headers,
        governing: &targets.governing(&headers),
        received: at(0),
        set_cookie: SetCookie::default(),
    })
    .ok()?;
    let nominated = Nominated::of(&headers);
    let key = nominated.key(&kept_for)?;
    let stored = StoredFacts::of(
        status,
        &headers,
        &targets,
        Heuristic::default(),
        at(0),
        at(0),
    );
    let presented = moment.request.headers(hand);
    if !nominated.matches(&key, &presented) {
        return None;
    }
    let now = at(i64::try_from(moment.age - u64::from(moment.response.age.unwrap_or(0))).unwrap());
    Some(may_reuse(
        &RequestDirectives::of(&presented),
        &stored,
        now,
        moment.origin,
        &moment.bounds,
    ))
}

fn span() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..40, 0u32..40, Just(u32::from(u16::MAX))]
}

fn rarely() -> impl Strategy<Value = bool> {
    prop_oneof![6 => Just(false), 1 => Just(true)]
}

fn responses() -> impl Strategy<Value = Response> {
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

fn requests() -> impl Strategy<Value = Request> {
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

fn hands() -> impl Strategy<Value = Hand> {
    any::<[bool; 4]>().prop_map(|[upper, quoted, lines, noise]| Hand {
        upper,
        quoted,
        lines,
        noise,
    })
}

fn origins() -> impl Strategy<Value = (Origin, StaleBounds)> {
    let origin = prop_oneof![
        Just(Origin::Reachable),
        Just(Origin::Failed),
        Just(Origin::Disconnected)
    ];
    let bound = || prop_oneof![Just(0u64), 0u64..60].prop_map(Duration::from_secs);
    (origin, bound(), bound()).prop_map(|(origin, failed, disconnected)| {
        (
            origin,
            StaleBounds {
                failed,
                disconnected,
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn nothing_prohibited_is_reused(
        stored_for in requests(),
        response in responses(),
        request in requests(),
        hand in hands(),
        resident in 0u64..120,
        (origin, bounds) in origins(),
    ) {
        let age = u64::from(response.age.unwrap_or(0)) + resident;
        let moment =
            Moment { stored_for: &stored_for, response: &response, request: &request, age, origin, bounds };
        if let Some(Ok(way)) = walk(&moment, hand) {
            prop_assert_eq!(moment.prohibited(way), None, "{:?}", way);
        }
    }

    /// The other way round: what may be reused is, in the best of the ways that are open.
    #[test]
    fn nothing_is_fetched_in_vain(
        stored_for in requests(),
        response in responses(),
        request in requests(),
        hand in hands(),
        resident in 0u64..120,
        (origin, bounds) in origins(),
    ) {
        let age = u64::from(response.age.unwrap_or(0)) + resident;
        let moment =
            Moment { stored_for: &stored_for, response: &response, request: &request, age, origin, bounds };
        let ways = [
            Reuse::Fresh,
            Reuse::MaxStale,
            Reuse::IfError,
            Reuse::WhileRevalidate,
        ];
        // A way of answering stale is open only to what is stale, or kept from a client that wants more.
        let open = |way: &Reuse| match way {
            Reuse::MaxStale | Reuse::WhileRevalidate => moment.staleness().is_some(),
            Reuse::Fresh | Reuse::IfError => true,
        };
        let best = ways.into_iter().find(|way| open(way) && moment.prohibited(*way).is_none());
        if let Some(best) = best {
            prop_assert_eq!(walk(&moment, hand), Some(Ok(best)));
        }
    }
}
