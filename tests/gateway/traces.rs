//! Traces: `traceparent` on its way through, and the spans that a collector gets.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod spans;

use crate::respect::plain;
use crate::support::{Gateway, TOKEN, Upstream, token};

const SPAN: &str = "00f067aa0ba902b7";

/// The id of a trace, by a number.
fn trace(number: u32) -> String {
    format!("{:032x}", 0xabc0_0000 + u128::from(number))
}

/// Without a collector. A plain route does not touch the fields; on a typed one, `trace` has the
/// forms.
#[tokio::test]
async fn traceparent_is_passed_on() {
    let upstream = Upstream::start();
    let (typed, plain) = (Gateway::before(&upstream), plain(&upstream).start());
    let future = format!("cc-{}-{SPAN}-01-more", trace(1));
    let known = format!("00-{}-{SPAN}-01", trace(1));
    for (gateway, target, value, passed) in [
        (&typed, TOKEN, &*future, Some(&*known)),
        (&typed, &*token(2), "nonsense", None),
        (&plain, "/a", &*future, Some(&*future)),
        (&plain, "/a", "nonsense", Some("nonsense")),
    ] {
        let fields = [("traceparent", value), ("tracestate", "not valid")];
        gateway.request("GET", target, &fields).await;
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.field("traceparent").as_deref(), passed, "{target}");
        let state = (target == "/a").then_some("not valid");
        assert_eq!(seen.field("tracestate").as_deref(), state, "{target}");
    }
}
