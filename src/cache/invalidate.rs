//! Invalidation by unsafe methods (RFC 9111 §4.4).
//!
//! Returns the targets, as path and query on the origin of the request, whose
//! stored responses must be validated before reuse. References are resolved by
//! RFC 3986 §5; the fragment is dropped, and percent-encoding is not changed.

use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{self, HeaderName},
    uri::{Authority, Scheme},
};

/// Whether a method is known to be safe (RFC 9110 §9.2.1, and the IANA registry
/// for WebDAV's). An unknown method is not.
#[must_use]
pub(crate) fn is_safe(method: &Method) -> bool {
    method.is_safe() || matches!(method.as_str(), "PROPFIND" | "REPORT" | "SEARCH")
}

/// The path and query of every target to invalidate, the request's own first.
/// Empty for a safe method or an error.
#[must_use]
pub(crate) fn targets(
    method: &Method,
    target: &Uri,
    status: StatusCode,
    response: &HeaderMap,
) -> Vec<String> {
    // §4.4: a non-error response is one with a 2xx or 3xx status code.
    if is_safe(method) || !(status.is_success() || status.is_redirection()) {
        return Vec::new();
    }
    let mut found = vec![path_and_query(target)];
    for name in [header::LOCATION, header::CONTENT_LOCATION] {
        if let Some(named) = named_target(target, response, &name)
            && !found.contains(&named)
        {
            found.push(named);
        }
    }
    found
}

/// The target in `Location` or `Content-Location`, if it has the origin of the
/// request's target. Targets of other origins must not be invalidated (§4.4).
#[must_use]
pub(crate) fn named_target(
    target: &Uri,
    response: &HeaderMap,
    name: &HeaderName,
) -> Option<String> {
    let mut lines = response.get_all(name).iter();
    let reference = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    resolve(target, reference.trim_matches([' ', '\t']))
}

/// The path and query of a target.
#[must_use]
pub(crate) fn path_and_query(target: &Uri) -> String {
    let path = if target.path().is_empty() {
        "/"
    } else {
        target.path()
    };
    match target.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

/// Whether a target has this origin (RFC 9110 §4.3.1).
fn same_origin(target: &Uri, scheme: &Scheme, authority: &Authority) -> bool {
    let port = |authority: &Authority, scheme: &Scheme| {
        authority.port_u16().or(match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        })
    };
    let (Some(own_scheme), Some(own)) = (target.scheme(), target.authority()) else {
        return false;
    };
    // RFC 9110 §4.2.4: userinfo is an error, so an authority with it names no origin.
    own_scheme == scheme
        && own.host().eq_ignore_ascii_case(authority.host())
        && !authority.as_str().contains('@')
        && port(own, own_scheme) == port(authority, scheme)
}

/// RFC 3986 §5.2.2, for references to the same origin.
fn resolve(base: &Uri, reference: &str) -> Option<String> {
    let reference = reference.split('#').next().unwrap_or_default();
    let colon = reference
        .find([':', '/', '?'])
        .filter(|&at| reference.as_bytes()[at] == b':');
    if let Some(colon) = colon {
        // A URI with a scheme: absolute, or of another kind, which has no
        // origin here.
        reference[colon..].strip_prefix("://")?;
        return absolute(base, reference);
    }
    if let Some(rest) = reference.strip_prefix("//") {
        return absolute(base, &format!("{}://{rest}", base.scheme_str()?));
    }
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let base_path = if base.path().is_empty() {
        "/"
    } else {
        base.path()
    };
    let (path, query) = if path.is_empty() {
        (base_path.to_owned(), query.or(base.query()))
    } else if path.starts_with('/') {
        (without_dots(path), query)
    } else {
        let folder = base_path.rfind('/').map_or("/", |last| &base_path[..=last]);
        (without_dots(&format!("{folder}{path}")), query)
    };
    Some(query.map_or_else(|| path.clone(), |query| format!("{path}?{query}")))
}

fn absolute(base: &Uri, reference: &str) -> Option<String> {
    let uri: Uri = reference.parse().ok()?;
    if !same_origin(base, uri.scheme()?, uri.authority()?) {
        return None;
    }
    let path = if uri.path().is_empty() {
        "/"
    } else {
        uri.path()
    };
    let path = without_dots(path);
    Some(
        uri.query()
            .map_or_else(|| path.clone(), |query| format!("{path}?{query}")),
    )
}

/// RFC 3986 §5.2.4, for a path that begins with a slash.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests;
