//! `ratelimit` and `ratelimit-policy`, which are structured fields (RFC 9651):
//! draft-ietf-httpapi-ratelimit-headers 7, a dictionary such as
//! `limit=100, remaining=50, reset=5`, and 8 and later, a list of service limits
//! such as `"default";r=50;t=30`, which Cloudflare and ordgate itself send. Pure.
//!
//! Each line is parsed on its own, so that of two intermediaries that report limits
//! neither hides the limits of the other.

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

use super::LimitWindow;
use super::times::Clocks;

pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceLimit {
    /// The window of its policy.
    pub(crate) window: LimitWindow,
    /// The requests left.
    pub(crate) remaining: u64,
    /// The seconds until the window ends.
    pub(crate) end: Option<u64>,
    /// The length of the window in seconds, by its policy.
    pub(crate) longest: Option<u64>,
}

struct QuotaPolicy {
    name: String,
    window: Option<u64>,
    /// Whether the unit is requests, not bytes or concurrent requests (draft 8, quota
    /// units).
    counts_requests: bool,
}

/// The service limits of a response that count requests, and the lines that cannot be
/// parsed.
pub(crate) fn read(fields: &HeaderMap, clocks: Clocks) -> (Vec<ServiceLimit>, Vec<&HeaderValue>) {
    let (mut items, mut unreadable) = (Vec::new(), Vec::new());
    let lines = fields.get_all(RATELIMIT);
    if lines.iter().next().is_none() {
        return (items, unreadable);
    }
    let policies = policies(fields);
    // Draft 7 has one service limit, which may be spread over lines.
    let (mut left, mut end): (Option<u64>, Option<u64>) = (None, None);
    for line in lines {
        let mut is_read = true;
        match parse(line) {
            Some(RatelimitLine::Members(members)) => {
                let member = |name: &str| members.get(name).and_then(number);
                let (line_left, line_end) = (member("remaining"), member("reset"));
                is_read = line_left.is_some() || !members.contains_key("remaining");
                is_read &= line_end.is_some() || !members.contains_key("reset");
                left = left.into_iter().chain(line_left.map(floor)).min();
                end = end.max(line_end.map(|end| until(end, clocks)));
            }
            Some(RatelimitLine::Limits(limits)) => {
                for (name, parameters) in limits {
                    let policy = policies.iter().find(|policy| policy.name == name);
                    if policy.is_some_and(|policy| !policy.counts_requests) {
                        continue;
                    }
                    let item = item(policy, &parameters, clocks);
                    let (t, has_t) = (item.and_then(|item| item.end), parameters.contains_key("t"));
                    is_read &= item.is_some() && t.is_some() == has_t;
                    items.extend(item);
                }
            }
            None => is_read = false,
        }
        if !is_read {
            unreadable.push(line);
        }
    }
    if let Some(left) = left {
        items.push(ServiceLimit {
            window: LimitWindow::Unnamed,
            remaining: left,
            end,
            longest: None,
        });
    }
    (items, unreadable)
}

/// A line of `ratelimit`.
enum RatelimitLine {
    /// Draft 7.
    Members(Dictionary),
    /// Draft 8 and later: names and parameters.
    Limits(Vec<(String, Parameters)>),
}

fn parse(line: &HeaderValue) -> Option<RatelimitLine> {
    let members: Result<Dictionary, _> = Parser::new(line.as_bytes()).parse();
    let is_draft_7 = |members: &Dictionary| {
        let names = ["limit", "remaining", "reset"];
        names.iter().any(|name| members.contains_key(*name))
    };
    if let Ok(members) = members
        && is_draft_7(&members)
    {
        return Some(RatelimitLine::Members(members));
    }
    let list: List = Parser::new(line.as_bytes()).parse().ok()?;
    let limits = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => Some((name(&item.bare_item)?, item.params)),
        ListEntry::InnerList(_) => None,
    });
    Some(RatelimitLine::Limits(limits.collect::<Option<_>>()?))
}

fn item(
    policy: Option<&QuotaPolicy>,
    parameters: &Parameters,
    clocks: Clocks,
) -> Option<ServiceLimit> {
    let longest = policy.and_then(|policy| policy.window);
    Some(ServiceLimit {
        window: longest.map_or(LimitWindow::Unnamed, LimitWindow::lasting),
        remaining: floor(parameters.get("r").and_then(thousandths)?),
        end: (parameters.get("t").and_then(thousandths)).map(|end| until(end, clocks)),
        longest,
    })
}

/// The named policies. One that cannot be parsed is ignored, because it only completes
/// `ratelimit`.
fn policies(fields: &HeaderMap) -> Vec<QuotaPolicy> {
    let lines = fields.get_all(POLICY).iter();
    let lists = lines.filter_map(|line| Parser::new(line.as_bytes()).parse::<List>().ok());
    let policy = |entry: ListEntry| match entry {
        ListEntry::Item(item) => Some(QuotaPolicy {
            name: name(&item.bare_item)?,
            window: item.params.get("w").and_then(thousandths).map(ceil),
            counts_requests: match item.params.get("qu") {
                Some(unit) => name(unit).is_some_and(|unit| unit == "requests"),
                None => true,
            },
        }),
        ListEntry::InnerList(_) => None,
    };
    lists.flatten().filter_map(policy).collect()
}

/// A name: a string, or a token, which some servers send.
fn name(item: &BareItem) -> Option<String> {
    let string = item.as_string().map(|string| string.as_str());
    let name = string.or_else(|| item.as_token().map(|token| token.as_str()));
    name.map(str::to_owned)
}

fn number(entry: &ListEntry) -> Option<u64> {
    match entry {
        ListEntry::Item(item) => thousandths(&item.bare_item),
        ListEntry::InnerList(_) => None,
    }
}

/// A non-negative number, in thousandths. The drafts have integers; some servers send
/// decimals.
fn thousandths(item: &BareItem) -> Option<u64> {
    let integer = item.as_integer().map(i64::from);
    let decimal = || {
        let decimal = item.as_decimal()?;
        u64::try_from(i64::from(decimal.as_integer_scaled_1000())).ok()
    };
    match integer {
        // 15 digits at the most.
        Some(integer) => Some(u64::try_from(integer).ok()?.saturating_mul(1000)),
        None => decimal(),
    }
}

/// Whole seconds until an end. The drafts have seconds to go; some servers send Unix
/// time.
fn until(thousandths: u64, clocks: Clocks) -> u64 {
    clocks.seconds_of(u128::from(thousandths) * 1_000_000)
}

fn floor(thousandths: u64) -> u64 {
    thousandths / 1000
}

fn ceil(thousandths: u64) -> u64 {
    thousandths.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::super::tests::fields;
    use super::*;

    fn clocks() -> Clocks {
        Clocks::of(&HeaderMap::new(), std::time::SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn limits_as_in_the_drafts() {
        use LimitWindow::{Day, Minute, Second, Unnamed};
        type Limit = (LimitWindow, u64, Option<u64>, Option<u64>);
        // Fields; limits; number of lines that cannot be parsed.
        let rows: &[(&str, &[Limit], usize)] = &[
            ("", &[], 0),
            ("ratelimit-policy: \"default\";q=100;w=60", &[], 0),
            // Draft 7.
            (
                "ratelimit: limit=100, remaining=50, reset=5 | ratelimit-policy: 100;w=60",
                &[(Unnamed, 50, Some(5), None)],
                0,
            ),
            (
                "ratelimit: limit=10,remaining=0",
                &[(Unnamed, 0, None, None)],
                0,
            ),
            (
                "ratelimit: remaining=1.5, reset=1.5",
                &[(Unnamed, 1, Some(2), None)],
                0,
            ),
            (
                "ratelimit: remaining=9, reset=5 | ratelimit: remaining=3, reset=2",
                &[(Unnamed, 3, Some(5), None)],
                0,
            ),
            ("ratelimit: limit=100", &[], 0),
            ("ratelimit: remaining=-1, reset=5", &[], 1),
            (
                "ratelimit: remaining=9, reset=soon",
                &[(Unnamed, 9, None, None)],
                1,
            ),
            ("ratelimit: remaining, reset=5", &[], 1),
            ("ratelimit: remaining=(1 2)", &[], 1),
            // Draft 8 and later.
            (
                "ratelimit: \"default\";r=50;t=30 | \
                 ratelimit-policy: \"default\";q=100;w=60",
                &[(Minute, 50, Some(30), Some(60))],
                0,
            ),
            (
                "ratelimit: \"burst\";r=9;t=1, \"day\";r=0 | \
                 ratelimit-policy: \"burst\";q=10;w=1, \"day\";q=1000;w=86400",
                &[(Second, 9, Some(1), Some(1)), (Day, 0, None, Some(86_400))],
                0,
            ),
            (
                "ratelimit: \"a\";r=1;t=2;pk=:c2hhMjU2: | ratelimit: b;r=3;t=4 | \
                 ratelimit-policy: \"a\";q=1;w=900 | ratelimit-policy: &",
                &[
                    (Unnamed, 1, Some(2), Some(900)),
                    (Unnamed, 3, Some(4), None),
                ],
                0,
            ),
            (
                "ratelimit: \"100-in-15min\"; r=99; t=900",
                &[(Unnamed, 99, Some(900), None)],
                0,
            ),
            // Other units than requests.
            (
                "ratelimit: \"a\";r=1;t=2, \"b\";r=0;t=9, \"c\";r=0;t=9 | \
                 ratelimit-policy: \"a\";q=1;qu=\"requests\", \"b\";q=1;qu=\"content-bytes\", \"c\";q=1;qu=\"concurrent-requests\"",
                &[(Unnamed, 1, Some(2), None)],
                0,
            ),
            ("ratelimit: \"a\"", &[], 1),
            ("ratelimit: \"a\";r=-1;t=2", &[], 1),
            ("ratelimit: \"a\";r=many;t=2", &[], 1),
            (
                "ratelimit: \"a\";r=0;t=soon",
                &[(Unnamed, 0, None, None)],
                1,
            ),
            ("ratelimit: \"a\";r=1;t=2, &", &[], 1),
            ("ratelimit: 5", &[], 1),
            ("ratelimit: (\"a\");r=1", &[], 1),
            ("ratelimit: ", &[], 0),
        ];
        for (text, expected, unreadable) in rows {
            let fields = fields(text);
            let (items, lines) = read(&fields, clocks());
            let limit = |item: &ServiceLimit| (item.window, item.remaining, item.end, item.longest);
            let found: Vec<Limit> = items.iter().map(limit).collect();
            assert_eq!(found, *expected, "{text}");
            assert_eq!(lines.len(), *unreadable, "{text}");
        }
    }

    proptest! {
        /// The form that ordgate sends is parsed, and no text panics.
        #[test]
        fn ordgates_own_form_is_parsed(left: u32, end in 0_u64..1 << 29, other in "[ -~]{0,40}") {
            let own = format!("\"default\";r={left};t={end}");
            let mut fields = HeaderMap::new();
            for (name, value) in [(RATELIMIT, &own), (RATELIMIT, &other), (POLICY, &other)] {
                fields.append(name, value.parse().unwrap());
            }
            let (items, unreadable) = read(&fields, clocks());
            let is_it = |item: &ServiceLimit| item.remaining == u64::from(left) && item.end == Some(end);
            prop_assert!(items.iter().any(is_it));
            prop_assert!(unreadable.len() <= 1);
        }
    }
}
