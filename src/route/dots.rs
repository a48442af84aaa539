//! Finds dot segments (RFC 3986 §5.2.4), `.` and `..`, in every form that some
//! server takes for one. They would lead to a path outside of the base URL or of
//! `upstream_path`.
//!
//! A dot may be percent-encoded. A segment may end with a slash or a backslash,
//! either of which may be percent-encoded, or with the semicolon of parameters or a NUL,
//! which some servers remove before they resolve dots. Text that is encoded twice
//! is not decoded twice by a server that follows the RFC.

/// Whether a path has a dot segment.
pub(super) fn has_dot_segment(path: &[u8]) -> bool {
    // Most paths contain neither.
    if memchr::memchr2(b'.', b'%', path).is_none() {
        return false;
    }
    let mut rest = path;
    loop {
        let (dots, after) = dots(rest);
        let ends = after.is_empty() || separator(after).is_some() || parameters(after);
        if matches!(dots, 1 | 2) && ends {
            return true;
        }
        rest = after;
        rest = loop {
            if rest.is_empty() {
                return false;
            }
            match separator(rest) {
                Some(length) => break &rest[length..],
                None => rest = &rest[1..],
            }
        };
    }
}

/// The number of dots at the beginning, and what follows them.
fn dots(mut path: &[u8]) -> (usize, &[u8]) {
    let mut count = 0;
    loop {
        path = match path {
            [b'.', rest @ ..] | [b'%', b'2', b'e' | b'E', rest @ ..] => rest,
            _ => return (count, path),
        };
        count += 1;
    }
}

/// The length of a slash or backslash at the beginning.
fn separator(path: &[u8]) -> Option<usize> {
    match path {
        [b'/' | b'\\', ..] => Some(1),
        [b'%', b'2', b'f' | b'F', ..] | [b'%', b'5', b'c' | b'C', ..] => Some(3),
        _ => None,
    }
}

/// Whether a semicolon is at the beginning, or a NUL, at which some servers cut a path off.
fn parameters(path: &[u8]) -> bool {
    matches!(
        path,
        [b';', ..] | [b'%', b'3', b'b' | b'B', ..] | [b'%', b'0', b'0', ..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_dot_segments() {
        for path in [
            ".",
            "..",
            "../x",
            "a/..",
            "a/./b",
            "a/../b",
            "a/%2e%2e/b",
            "a/%2E%2e/b",
            "a/%2e",
            "a/.%2E/b",
            "%2e./b",
            "a//../b",
            "..%2fb",
            "a%2F..%2Fb",
            "a%2f%2e%2e",
            "..\\b",
            "a\\..",
            "..%5Cb",
            "a%5c..",
            "..;/b",
            "..;x=y/b",
            "a/..%3b/b",
            "a/.;/b",
            "..%00",
            "a/..%00x/b",
            "a/.../..",
        ] {
            assert!(has_dot_segment(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "a/b",
            "a.b/c",
            "..a",
            "a..",
            "a../b",
            "a/.b",
            "a/b./c",
            "...",
            "a/.../b",
            "%2e%2e%2e",
            ".well-known/x",
            "a/..b;c",
            "a/b..;c",
            "%252e%252e/b",
            "..%252fb",
            "%2",
            "%",
            "a%20.%20b",
            "a/%2eb",
        ] {
            assert!(!has_dot_segment(path.as_bytes()), "{path}");
        }
    }
}
