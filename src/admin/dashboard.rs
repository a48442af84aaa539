//! The dashboard at `/`: a page whose files are in the binary. They contain no data;
//! the page reads `/status`, `/history` and `/explain`.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY};
use http::{HeaderValue, Response};

use super::response::typed;
use crate::wire::Body;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, media type and content.
#[rustfmt::skip]
const FILES: [(&str, &str, &[u8]); 10] = [
    ("/", "text/html; charset=utf-8", include_bytes!("dashboard/index.html")),
    ("/dashboard/page.css", "text/css; charset=utf-8", include_bytes!("dashboard/page.css")),
    ("/dashboard/icon.svg", "image/svg+xml", include_bytes!("dashboard/icon.svg")),
    ("/dashboard/main.js", SCRIPT, include_bytes!("dashboard/main.js")),
    ("/dashboard/text.js", SCRIPT, include_bytes!("dashboard/text.js")),
    ("/dashboard/source.js", SCRIPT, include_bytes!("dashboard/source.js")),
    ("/dashboard/charts.js", SCRIPT, include_bytes!("dashboard/charts.js")),
    ("/dashboard/overview.js", SCRIPT, include_bytes!("dashboard/overview.js")),
    ("/dashboard/details.js", SCRIPT, include_bytes!("dashboard/details.js")),
    ("/dashboard/actions.js", SCRIPT, include_bytes!("dashboard/actions.js")),
];

/// Only files of this listener, and no script but them; styles also by scripts (CSSOM),
/// which the policy does not concern.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// The file at a path.
pub(super) fn file(path: &str) -> Option<Response<Body>> {
    let (_, media, content) = FILES.iter().find(|(own, ..)| *own == path)?;
    let mut response = typed(media, Bytes::from_static(content));
    let fields = response.headers_mut();
    // The next version of ordgate has other files.
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    fields.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    fields.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Some(response)
}
