//! The dashboard at `/`: a page whose files are in the binary. They contain no data;
//! the page reads `/status`, `/history` and `/explain`.
//!
//! Each file is compressed once, when it is first requested. The policy lets the page
//! load from this listener only, and run no script but its files.

use std::sync::OnceLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, REFERRER_POLICY,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::cache::coding::{Coding, preferred};
use crate::cache::etag::{encoded_etag, etag, none_match_fails};
use crate::compress::{Effort, encode};
use crate::wire::Body;

/// A file of the dashboard.
pub(super) struct PageFile {
    path: &'static str,
    media: &'static str,
    content: &'static [u8],
    prepared: OnceLock<Prepared>,
}

/// What is made of a file once.
struct Prepared {
    etag: HeaderValue,
    gzip: Option<Bytes>,
}

impl PageFile {
    const fn new(path: &'static str, media: &'static str, content: &'static [u8]) -> Self {
        Self {
            path,
            media,
            content,
            prepared: OnceLock::new(),
        }
    }
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const ICON: &str = "image/svg+xml";
const SCRIPT: &str = "text/javascript; charset=utf-8";

static FILES: [PageFile; 11] = [
    PageFile::new("/", HTML, include_bytes!("dashboard/index.html")),
    PageFile::new(
        "/dashboard/page.css",
        CSS,
        include_bytes!("dashboard/page.css"),
    ),
    PageFile::new(
        "/dashboard/icon.svg",
        ICON,
        include_bytes!("dashboard/icon.svg"),
    ),
    PageFile::new(
        "/dashboard/main.js",
        SCRIPT,
        include_bytes!("dashboard/main.js"),
    ),
    PageFile::new(
        "/dashboard/text.js",
        SCRIPT,
        include_bytes!("dashboard/text.js"),
    ),
    PageFile::new(
        "/dashboard/source.js",
        SCRIPT,
        include_bytes!("dashboard/source.js"),
    ),
    PageFile::new(
        "/dashboard/charts.js",
        SCRIPT,
        include_bytes!("dashboard/charts.js"),
    ),
    PageFile::new(
        "/dashboard/tables.js",
        SCRIPT,
        include_bytes!("dashboard/tables.js"),
    ),
    PageFile::new(
        "/dashboard/actions.js",
        SCRIPT,
        include_bytes!("dashboard/actions.js"),
    ),
    PageFile::new(
        "/dashboard/uPlot.iife.min.js",
        SCRIPT,
        include_bytes!("dashboard/vendor/uPlot.iife.min.js"),
    ),
    PageFile::new(
        "/dashboard/uPlot.min.css",
        CSS,
        include_bytes!("dashboard/vendor/uPlot.min.css"),
    ),
];

/// Only files of this listener; styles also by scripts (CSSOM), which the policy does
/// not concern.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// The file at a path.
pub(super) fn file(path: &str) -> Option<&'static PageFile> {
    FILES.iter().find(|file| file.path == path)
}

impl PageFile {
    /// The file, compressed if the client accepts that, or 304 if it has it.
    pub(super) fn response(&self, request: &HeaderMap) -> Response<Body> {
        let prepared = self.prepared.get_or_init(|| Prepared {
            etag: etag(self.content),
            gzip: encode(self.content, Coding::Gzip, Effort::High)
                .ok()
                .map(Bytes::from),
        });
        let gzip = preferred(request, &[Coding::Gzip]);
        let gzip = gzip.and(prepared.gzip.as_ref());
        let unchanged = none_match_fails(request, &prepared.etag);
        let mut response = Response::new(match (unchanged, gzip) {
            (true, _) => Body::default(),
            (false, Some(gzip)) => Body::new(gzip.clone()),
            (false, None) => Body::new(Bytes::from_static(self.content)),
        });
        let fields = response.headers_mut();
        let constant = [
            // The next version of ordgate has other files.
            (CACHE_CONTROL, "no-cache"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (VARY, "accept-encoding"),
        ];
        for (name, value) in constant {
            fields.insert(name, HeaderValue::from_static(value));
        }
        let etag = match gzip {
            Some(_) => encoded_etag(&prepared.etag, Coding::Gzip),
            None => prepared.etag.clone(),
        };
        fields.insert(ETAG, etag);
        if unchanged {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(self.media));
        if gzip.is_some() {
            fields.insert(CONTENT_ENCODING, Coding::Gzip.field());
        }
        response
    }
}
