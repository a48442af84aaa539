//! `/docs`: the OpenAPI document as an interactive page, by RapiDoc. Its files are in
//! the binary, so that it works offline.
//!
//! RapiDoc is compressed as its publisher distributes it. Its path has its version, so
//! that browsers keep it.

use bytes::Bytes;

use crate::respond::{Document, DocumentText};

/// The path of the page.
pub(crate) const PATH: &str = "/docs";

/// Scripts and requests of this listener only. RapiDoc writes styles into its elements.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page and its files.
pub(crate) fn files() -> Vec<Document> {
    let text = |text: &'static str| DocumentText::of(Bytes::from_static(text.as_bytes()));
    let page = text(include_str!("page/docs.html"));
    let style = text(include_str!("page/docs.css"));
    let script = text(include_str!("page/docs.js"));
    let library = DocumentText::of_gzip(include_bytes!("page/vendor/rapidoc-min.js.gz"));
    let of = |path, media, text| Document::new(path, media, text).with_policy(POLICY);
    vec![
        of(PATH, "text/html; charset=utf-8", page),
        of("/docs/docs.css", "text/css; charset=utf-8", style),
        of("/docs/docs.js", SCRIPT, script),
        of("/docs/rapidoc-9.3.8.js", SCRIPT, library).that_never_changes(),
    ]
}
